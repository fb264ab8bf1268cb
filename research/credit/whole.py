"""A drawn game as an app, trained by the class `Trainer` with a small network that knows nothing.

Each call goes through the gateway to the local backend. A word of a prompt is a token, and so is a reply. The
network is a Phi of one layer with random weights, whose output layer makes every reply equally likely. Other
words have a bias that makes them impossible. They get no gradient, so they stay impossible. After each update
the success of the policy is counted exactly, not estimated, and the run ends at the threshold.
"""

from __future__ import annotations

import signal
import tempfile
from contextlib import suppress
from pathlib import Path
from random import Random

import httpx
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PhiConfig, PhiForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

import lightning_core as lightning
from lightning_core.algorithms.policy_gradient import GRPO
from lightning_core.backends.local.backend import LocalBackend
from lightning_core.errors import TrainingStopped
from research.credit.playing import draw_outcome
from research.credit.truth import OVER, Truth

END, REPLY = "<end>", "<reply>"
HIDDEN = 64
SPREAD = 0.2
"""Deviation of the random weights."""
OFF = -10_000.0
"""Bias of a word that is no reply. Its probability is 0 in float32."""


class Game:
    """A game with the words of its prompts and replies. A call's prompt ends with what it is shown."""

    def __init__(self, truth: Truth) -> None:
        self.truth = truth
        self.replies = [f"r{number}" for number in range(truth.environment.actions)]
        self.words = [END, REPLY, *self.replies, *(f"w{word}" for word in range(truth.first_action))]

    def texts(self, row: int) -> tuple[str, str]:
        """The system message and the user's message of a prompt."""
        turn, ids = self.truth.prompts[row], self.truth.prompt_ids[row]
        words = [f"w{word}" for word in ids]
        shown = len(turn.observation.split())
        return " ".join(words[:-shown]), " ".join(words[-shown:])

    def tokens(self, row: int) -> list[int]:
        """The prompt as the chat template makes it."""
        return [self.words.index(word) for word in [*" ".join(self.texts(row)).split(), REPLY]]

    def save_model(self, folder: Path, seed: int) -> None:
        """A fresh network and its tokenizer as a transformers folder."""
        tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(self.words)}, END))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)
        fast.add_tokens([REPLY], special_tokens=True)
        fast.chat_template = "{% for m in messages %}{{ m.content }} {% endfor %}" + REPLY
        fast.save_pretrained(folder)
        torch.manual_seed(seed)
        config = PhiConfig(
            vocab_size=len(self.words),
            hidden_size=HIDDEN,
            intermediate_size=2 * HIDDEN,
            num_hidden_layers=1,
            num_attention_heads=4,
            max_position_embeddings=64,
            initializer_range=SPREAD,
            partial_rotary_factor=0.5,
            resid_pdrop=0.0,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=0,
            pad_token_id=0,
        )
        network = PhiForCausalLM(config)
        with torch.no_grad():
            network.lm_head.weight.zero_()
            network.lm_head.bias.fill_(OFF)[2 : 2 + len(self.replies)] = 0
        network.save_pretrained(folder)


class App:
    """Plays a game once with the policy's replies."""

    def __init__(self, game: Game, seed: int) -> None:
        self._game, self._seed, self._played = game, seed, 0
        # none is kept open: the loop ends with the run
        self._client = httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_keepalive_connections=0))
        self.texts = [game.texts(row) for row in range(len(game.truth.prompts))]

    async def __call__(self, task: lightning.Task) -> float:
        """Returns the final reward, with the game's noise."""
        truth, self._played = self._game.truth, self._played + 1
        random = Random(f"{self._seed} {self._played}")
        state, _ = draw_outcome(truth.starts[int(str(task.input["task"]))], random)
        while (row := truth.prompt_of[state]) != OVER:
            action = await self._reply(truth.prompts[row].agent, row)
            state, _ = draw_outcome(truth.outcomes[state][action], random)
        return truth.final[state] + random.gauss(0, truth.environment.noise)

    async def _reply(self, agent: str, row: int) -> int:
        to = lightning.environment(agent)
        about, shown = self.texts[row]
        messages = [{"role": "system", "content": about}, {"role": "user", "content": shown}]
        answer = await self._client.post(
            f"{to['OPENAI_BASE_URL']}/chat/completions",
            headers={"Authorization": f"Bearer {to['OPENAI_API_KEY']}"},
            json={"model": "game", "messages": messages, "max_tokens": 1},
        )
        answer.raise_for_status()
        return self._game.replies.index(answer.json()["choices"][0]["message"]["content"].strip())


class Measured(LocalBackend):
    """The local backend, whose policy is measured after each update."""

    game: Game
    aim: float

    def begin(self, game: Game, aim: float) -> None:
        """Know what to measure, and the success at which to stop."""
        self.game, self.aim, self.success = game, aim, list[float]()
        self._copy = PhiForCausalLM.from_pretrained(self.model)

    async def publish(self) -> int:
        version = await super().publish()
        self.success.append(await self._work(self._measure))
        if self.success[-1] >= self.aim:
            signal.raise_signal(signal.SIGINT)  # as Ctrl-C
        return version

    @torch.no_grad()
    def _measure(self) -> float:
        game = self.game
        self._copy.load_state_dict(self._started.policy.base.state_dict())
        rows = [game.tokens(row) for row in range(len(game.truth.prompts))]
        found = torch.empty(len(rows), len(game.words))
        for length in {len(ids) for ids in rows}:
            places = [place for place, ids in enumerate(rows) if len(ids) == length]
            found[places] = self._copy(torch.tensor([rows[place] for place in places])).logits[:, -1]
        chances = torch.softmax(found.double(), 1)[:, 2 : 2 + len(game.replies)]
        return game.truth.success((chances / chances.sum(1, keepdim=True)).numpy())


def train_whole(truth: Truth, algorithm: GRPO, rate: float, seed: int, steps: int, aim: float) -> list[float]:
    """The success after each update of one run."""
    logging.disable_progress_bar()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a script's `&` leaves it ignored
    game = Game(truth)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "model")
        game.save_model(model, seed)
        backend = Measured(model, learning_rate=rate)
        backend.begin(game, aim)
        trainer = lightning.Trainer(
            backend=backend,
            algorithm=algorithm,
            steps=steps,
            seed=seed,
            store="memory://",
            folder=Path(folder, "run"),
            checkpoint_every=steps,
            alerts=False,
            stop_when_stuck=None,
            progress=False,
        )
        tasks = [lightning.Task(input={"task": task}) for task in range(truth.environment.tasks)]
        with suppress(TrainingStopped):  # at the threshold
            trainer.fit(App(game, seed), train=tasks)
    return backend.success
