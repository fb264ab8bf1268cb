"""The policy of the RAG example: a small Qwen3 that searches and answers, made on one CPU thread.

    python -m recipes.rag --seed 0 --out DIR

Its demonstrations come from `corpus`; vocabulary, model and training are those of `recipes.tiny`; `trial`
measures it in the app's own turns, and `card` writes the folder.
"""
