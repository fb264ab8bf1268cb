"""The policy of `examples/calc`: a small Qwen3 that solves word problems, made in minutes on one CPU thread.

    python -m recipes.calc --seed 0 --out DIR

Its demonstrations come from `corpus` and its tokens from `vocabulary`; training is that of `recipes.tiny`. It
is measured in the app itself, and `card` describes it.
"""
