"""vLLM as the engine: tokens in, tokens out, from one server or several.

Nothing is imported here, so that a process loads no more of it than it needs.
"""
