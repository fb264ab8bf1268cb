"""Weights: where a model comes from, how big it is, its folders, and what a version of it holds.

Below every backend: no engine and no optimizer here.
"""
