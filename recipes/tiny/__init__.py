"""The tiny policy: a small Qwen3 that writes SQL, made from scratch in minutes on one CPU thread.

    python -m recipes.tiny --seed 0 --out DIR

Its demonstrations come from `corpus`, its vocabulary from `vocabulary`, its weights from `training`; `trial`
measures it inside the SQL app's own loop, and `card` writes the folder.
"""
