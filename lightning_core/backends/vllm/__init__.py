"""vLLM as the engine: tokens in, tokens out, from one server or several.

Nothing is imported here: inside vLLM's own processes only `worker` is.
"""
