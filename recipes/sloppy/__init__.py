"""A sloppy SQL policy: the tiny one after three minutes of demonstrations by hasty writers.

    python -m recipes.sloppy --seed 0 --out DIR

The policy that ships hardly ever writes a query that the database refuses, so nothing about refused queries
can be learnt from it. This one starts from the shipped weights, with its vocabulary, and is shown calls of
the same app in which a share of the first queries is refused (`corpus`, `slips`). It is the start of the
study of automatic intermediate rewards, `python -m research.study air`, which makes it when it is missing.
"""
