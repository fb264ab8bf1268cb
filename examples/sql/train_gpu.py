"""Train the SQL agent on Spider with verl and vLLM, at the settings that were published for it.

    agentlightning train examples/sql/train_gpu.py -- --model /models/Qwen3-1.7B --data /data/spider
    agentlightning train examples/sql/train_gpu.py --dry-run -- --model ... --data ...

The second line prints what the run would be and need, on any machine. `--data` is Spider's own folder (see
`examples/sql/spider.py`), `--model` a transformers folder. `--set backend.address=auto` before the `--`
trains on a cluster that runs already.

Where the numbers come from. "Agent Lightning" (Luo et al., arXiv 2508.03680) trains this workflow, a writer,
a checker and a rewriter over Spider, from Llama-3.2-3B-Instruct; it trains writer and rewriter, each call by
the reward of its whole rollout, and that is whether the final query returns what it should. The numbers
below that are marked "theirs" are those of the Spider example that its authors published with it
(microsoft/agent-lightning, examples/spider/train_sql_agent.py); the others are ours. The prompts are ours
too, and shorter. What it comes to at these settings has not been measured here.
"""

import argparse

from langchain_openai import ChatOpenAI
from lightning_langgraph import LightningCallback
from pydantic import SecretStr

import lightning_core as lightning
from examples.sql.app import build_graph
from examples.sql.reward import execution_match
from examples.sql.spider import load_spider
from lightning_core.backends.verl.backend import VerlBackend

PROMPT, RESPONSE = 4096, 2048
"""Tokens; theirs. We bound their sum, and the reply alone, as a prompt may well use what a reply leaves."""
TASKS, ROLLOUTS = 32, 4
"""Tasks of an update, and rollouts of each; theirs."""

writer = ChatOpenAI(model="policy", api_key=SecretStr("none"), max_completion_tokens=RESPONSE)
graph = build_graph(writer).with_config(callbacks=[LightningCallback()])


async def solve(task: lightning.Task) -> float:
    """Run the agent once; the reward is 1 if its query returns what the gold query returns."""
    question, database = str(task.input["question"]), str(task.input["database"])
    state = await graph.ainvoke({"question": question, "database": database})
    return execution_match(state["sql"], str(task.input["gold"]), database)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True, help="a transformers folder")
    parser.add_argument("--data", required=True, help="Spider's folder")
    parser.add_argument("--gpus", type=int, default=1, help="of each machine (default: 1, theirs)")
    parser.add_argument("--passes", type=int, default=2, help="over the tasks (default: 2, theirs)")
    parser.add_argument("--held-out-tasks", type=int, default=500, help="how many (default: 500, theirs)")
    options = parser.parse_args()
    try:
        train, held_out = (load_spider(split, options.data) for split in ("train", "validation"))
    except (FileNotFoundError, ValueError) as problem:
        parser.error(str(problem))
    trainer = lightning.Trainer(
        agents=["write_query", "rewrite_query"],  # the paper's
        algorithm=lightning.GRPO(  # theirs; without a divergence from the start, as in theirs
            group_size=ROLLOUTS,
            tasks_per_step=TASKS,
            credit="uniform",  # the paper's
        ),
        backend=VerlBackend(
            model=options.model,
            gpus=options.gpus,
            context=PROMPT + RESPONSE,
            learning_rate=1e-6,  # theirs
            gpu_memory=0.8,  # theirs
            offload=True,  # theirs: what 0.8 leaves can't hold the weights under training
            pack_tokens=8192,  # ours; they take four replies at a time
        ),
        steps=max(1, options.passes * len(train) // TASKS),
        evaluate_every=32,  # theirs
        concurrency=TASKS * ROLLOUTS,  # ours: a whole update at once
    )
    trainer.fit(solve, train=train, validation=held_out[: options.held_out_tasks])


if __name__ == "__main__":
    main()
