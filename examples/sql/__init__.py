"""A text-to-SQL agent built with LangGraph, with the databases, questions and reward to train it on."""
