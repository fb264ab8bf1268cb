"""Recipes: how the files that the project ships were made."""
