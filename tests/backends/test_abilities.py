"""An algorithm that a backend can't run is refused before anything begins, by name and with what to do."""

from __future__ import annotations

import pytest

import lightning_core as lightning
from lightning_core.algorithms.base import Algorithm
from lightning_core.backends.base import check_backend
from lightning_core.errors import UnsupportedError

TAUGHT = lightning.SFT(demonstrations=[{"messages": [{"role": "user", "content": "go"}], "reply": "gone"}])


class Hosted(lightning.LocalBackend):
    """It has none of what only some algorithms need."""

    name = "hosted"
    values = encode = encode_prompt = set_reference = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (lightning.PPO(), "'ppo' has a critic, and backend 'hosted' has no 'values'"),
        (TAUGHT, "'sft' learns from demonstrations, and backend 'hosted' has no 'encode'"),
        (lightning.SDPO(), "'sdpo' learns from itself with a longer prompt, and backend 'hosted' has no"),
    ],
    ids=["critic", "demonstrations", "teacher"],
)
def test_what_an_algorithm_needs_and_the_backend_lacks_is_refused(algorithm: Algorithm, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        check_backend(Hosted("tiny"), algorithm)
    check_backend(lightning.LocalBackend("tiny"), algorithm)
    check_backend(Hosted("tiny"), lightning.GRPO())


@pytest.mark.parametrize("algorithm", [lightning.DPO(), lightning.GRPO(kl=0.1)], ids=["dpo", "kl"])
def test_another_reference_than_the_start_is_needed_in_later_phases_only(algorithm: Algorithm) -> None:
    check_backend(Hosted("tiny"), algorithm)
    with pytest.raises(UnsupportedError, match="has no 'set_reference' for that; use it in the first phase"):
        check_backend(Hosted("tiny"), algorithm, first_phase=False)
    check_backend(lightning.LocalBackend("tiny"), algorithm, first_phase=False)
    check_backend(Hosted("tiny"), lightning.GRPO(), first_phase=False)


def test_the_local_backend_refuses_what_has_no_loss() -> None:
    class Talk:
        name = "talk"

    with pytest.raises(UnsupportedError, match="'talk' has no 'weigh'"):
        check_backend(lightning.LocalBackend("tiny"), Talk())  # type: ignore[arg-type]
