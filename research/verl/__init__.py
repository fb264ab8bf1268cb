"""The SQL agent trained with verl and vLLM and with the local backend, and what of a step is ours."""
