"""Whether a server can be used, found out by asking it; what can't be used is refused by name.

What matters can't be read from a list: that token ids come back, and that log-probabilities are those at the
temperature sampled with. The last is seen by asking twice: at half the temperature the distance between two
tokens' log-probabilities doubles; a server that reports the model's own (raw) ones repeats itself.
"""

from __future__ import annotations

from typing import Any

from lightning_core.backends.vllm.wire import AS_SAMPLED, LostError, Wire, best_of
from lightning_core.errors import EngineError

PROMPT = [5, 6, 7, 8]
"""Any ids do; every model has these."""
BEST = 5
ASK_SECONDS = 60.0
NEWER = "use vLLM 0.10.2 or newer"
NEAR = 0.1
"""How far the ratio may be from 2: number formats of 16 bits round."""


async def check_server(wire: Wire, url: str, model: str) -> int:
    """The longest prompt plus completion, in tokens.

    Raises EngineError for a server that is away or can't be used, naming what it lacks.
    """
    context = await _context(wire, url, model)
    warm = await _ask(wire, url, model, temperature=1.0)
    cool = await _ask(wire, url, model, temperature=0.5)
    _check_logprobs(warm, cool, url)
    return context


async def _context(wire: Wire, url: str, model: str) -> int:
    try:
        said = await wire.ask(url, "/v1/models", seconds=ASK_SECONDS)
    except LostError as error:
        raise EngineError(f"{error}; start vLLM there, or give the address of a server that runs") from error
    cards = said.get("data", []) if isinstance(said, dict) else []
    names = [card.get("id") for card in cards]
    if model not in names:
        raise EngineError(
            f"{url} does not serve {model!r} but {names}; give the name it serves, or start it with "
            f"--served-model-name {model}"
        )
    context = cards[names.index(model)].get("max_model_len")
    if not isinstance(context, int):
        raise EngineError(
            f"{url} does not say how long a prompt may be (max_model_len in /v1/models), so it is not vLLM, "
            f"or an old one; {NEWER}"
        )
    return context


async def _ask(wire: Wire, url: str, model: str, *, temperature: float) -> dict[int, float]:
    """Log-probabilities of the best tokens after a prompt."""
    body: dict[str, Any] = {
        "model": model,
        "prompt": PROMPT,
        "max_tokens": 1,
        "temperature": temperature,
        "seed": 0,
        "logprobs": BEST,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        **AS_SAMPLED,
    }
    said = await wire.ask(url, "/v1/completions", body, ASK_SECONDS)
    choice = said["choices"][0]
    if (
        choice.get("token_ids") is None
        or (choice.get("prompt_token_ids") or said.get("prompt_token_ids")) != PROMPT
    ):
        raise EngineError(
            f"{url} answers without token ids (return_token_ids), so its replies can't be trained on; {NEWER}"
        )
    try:
        return dict(best_of(choice["logprobs"]["top_logprobs"][0], BEST))
    except (TypeError, KeyError, IndexError, ValueError) as error:
        raise EngineError(
            f"{url} answers without log-probabilities of token ids (return_tokens_as_token_ids); {NEWER}"
        ) from error


def _check_logprobs(warm: dict[int, float], cool: dict[int, float], url: str) -> None:
    first, last = max(warm, key=warm.__getitem__), min(warm.keys() & cool.keys(), key=warm.__getitem__)
    distance = warm[first] - warm[last]
    if first not in cool or distance < 1e-3:
        return  # a model that prefers nothing yet: its log-probabilities are alike at every temperature
    ratio = (cool[first] - cool[last]) / distance
    logits = max(*warm.values(), *cool.values()) > 0 or abs(cool[first] - 2 * warm[first]) < 1e-6 < abs(
        warm[first]
    )
    if abs(ratio - 2) > NEAR or logits:
        what = "logits" if logits else "log-probabilities of the model itself, whatever the temperature"
        raise EngineError(
            f"{url} reports {what}; training needs those of the distribution that was sampled from: start it "
            "with --logprobs-mode processed_logprobs"
        )
