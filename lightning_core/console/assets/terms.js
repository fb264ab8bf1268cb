// The words of the console, each explained once. docs/glossary.md has the same sentences.

import { h } from "console/dom.js";

export const TERMS = {
  "task": "One problem to solve, with its input. Training tasks are learnt from; held-out ones only measure.",
  "rollout": "One run of your app on one task.",
  "group": "The rollouts of one task in one step. They are compared with one another.",
  "step": "One update: its rollouts are collected, credited and learnt from. An evaluation after 0 steps shows the model before training.",
  "call": "One request of your app to a language model, with its reply.",
  "agent": "The role that made a call: a graph node, a team member, or the name you gave it.",
  "policy": "The model that is trained. Each update makes a new version of it. A run may have several, each played by some of its agents.",
  "version": "The weights after so many updates; version 0 is the model before training.",
  "current": "The version that is used when the run is served. It is served only while a gateway is up.",
  "reward": "The number that your function returned for a rollout: the higher, the better.",
  "training reward": "The mean reward of the rollouts of a step, sampled by the model before that update. A run shows the mean of its first steps and of its last.",
  "held-out reward": "The mean reward on the validation tasks, which the model never learns from. A rollout that failed counts 0.",
  "greedy": "The model always takes its likeliest token, so chance has no part.",
  "sampled": "The model draws each token by its probability, as in training.",
  "intermediate rewards": "Small rewards for single calls, such as −0.1 for a tool call that failed. They are kept apart from the final reward.",
  "return": "The final reward of a rollout plus its intermediate rewards.",
  "advantage": "How much better a call did than comparable ones. Above 0 the update makes its reply more likely, below 0 less likely.",
  "credit method": "The rule that turns the rewards of a group into an advantage for each call.",
  "baseline": "What is subtracted from a reward before it teaches: as a rule the mean of the group.",
  "spread": "What an advantage is divided by: as a rule the standard deviation of the group.",
  "share of the loss": "How much of a step's update comes from this call.",
  "surprise": "How unexpected a token was to the model: −log of its probability, in nats. 0 is certain; 0.7 is one of two.",
  "entropy": "How undecided the model is about its next token, in nats: 0 is certain. A fall to 0 means it no longer tries anything new.",
  "equal rewards": "Groups in which all rollouts earned the same: they teach nothing.",
  "gradient norm": "The size of the update before it is bounded. Jumps hint at too high a learning rate.",
  "clipped share": "The share of tokens whose probability moved so far that the update no longer pushes them.",
  "divergence": "How far the model has moved from where it began (KL), in nats per token.",
  "loss": "What the optimizer minimises. It need not fall: watch the rewards.",
  "engine gap": "The difference between the probabilities at sampling and at training, in nats. It should stay near 0.",
  "staleness": "By how many updates the weights that sampled a rollout are older than those that learn from it.",
  "trained": "Its calls are answered by the policy and learnt from.",
  "split": "Whether a rollout was for training or on a held-out task.",
};

/** A word with its meaning, shown on hover, focus or tap. */
export function term(name, shown = name) {
  return TERMS[name] ? h("abbr.term", { title: TERMS[name], tabindex: 0, "aria-label": `${shown}: ${TERMS[name]}` }, shown) : shown;
}

export async function show() {
  return { element: h("div", {}, h("h1", {}, "Words"), h("dl.words", {}, Object.entries(TERMS).map(([name, text]) => [h("dt", {}, name), h("dd", {}, text)]))) };
}
