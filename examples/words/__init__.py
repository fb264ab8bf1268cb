"""Word problems: a LangGraph app whose model writes arithmetic for a calculator, and its training script."""
