"""Answers about a run, from its records to values: what the terminal, the report and the console show.

Pure functions: no web, no torch, no clock. So each answer is computed in one place, and tested like a rule.
"""
