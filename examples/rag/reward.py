"""The reward: how much of the answer is right, and whether it stands where it was asked to stand."""

import re
import string
from collections import Counter
from collections.abc import Iterable

MARK = "Answer:"
"""The beginning of a reply in the right format."""


def answer_reward(reply: str, golds: Iterable[str]) -> float:
    """0.9 * F1 of the answer with the gold answer it fits best, and 0.1 for a reply in the right format.

    The format is one line, `Answer: ...`. A reply in another format is taken as a whole for the answer, so
    that words around the name cost precision. An empty reply earns nothing.
    """
    formatted = re.fullmatch(rf"{MARK} *(\S[^\n]*)", reply.strip())
    answer = formatted.group(1) if formatted else reply
    return 0.9 * max(f1(answer, gold) for gold in golds) + 0.1 * bool(formatted)


def f1(answer: str, gold: str) -> float:
    """Harmonic mean of precision and recall over words, as SQuAD counts them.

    Case, punctuation and articles do not count. Rajpurkar et al. 2016, https://arxiv.org/abs/1606.05250
    """
    found, wanted = _words(answer), _words(gold)
    common = sum((Counter(found) & Counter(wanted)).values())
    return 2 * common / (len(found) + len(wanted)) if common else 0.0


def _words(text: str) -> list[str]:
    bare = text.lower().translate(str.maketrans("", "", string.punctuation))
    return [word for word in bare.split() if word not in ("a", "an", "the")]
