"""The reward of the RAG example, in numbers worked out by hand."""

import pytest

from examples.rag.reward import answer_reward, f1


@pytest.mark.parametrize(
    ("reply", "reward"),
    [
        ("Answer: Ada Holt", 0.9 + 0.1),
        (" answer: Ada Holt ", 0.9 * 4 / 5),  # not the format: 3 words, 2 of them right
        ("Answer:Ada Holt\n", 0.9 + 0.1),
        ("Ada Holt", 0.9),
        ("It is Ada Holt.", 0.9 * 4 / 6),
        ("Answer: Ada Usher", 0.9 * 2 / 4 + 0.1),
        ("Answer: Teal Bay", 0.1),
        ("Answer: the ada, holt", 0.9 + 0.1),
        ("Answer: Ada Holt\nor so", 0.9 * 4 / 7),
        ("Answer:", 0.0),
        ("Teal Bay", 0.0),
        ("", 0.0),
    ],
)
def test_the_answer_counts_nine_tenths_and_the_format_one(reply: str, reward: float) -> None:
    assert answer_reward(reply, ["Ada Holt"]) == pytest.approx(reward)


def test_the_gold_answer_that_fits_best_counts() -> None:
    assert answer_reward("Answer: NYC", ["New York City", "NYC"]) == pytest.approx(1.0)
    assert answer_reward("Answer: York City", ["New York City", "NYC"]) == pytest.approx(0.9 * 4 / 5 + 0.1)


@pytest.mark.parametrize(
    ("answer", "gold", "score"),
    [
        ("a b b", "b b c", 2 * 2 / 5),  # the article is no word; b counts twice
        ("b", "b b", 2 * 1 / 3),
        ("", "", 0.0),
        ("...", "b", 0.0),
    ],
)
def test_words_count_as_often_as_they_occur_in_both(answer: str, gold: str, score: float) -> None:
    assert f1(answer, gold) == pytest.approx(score)
