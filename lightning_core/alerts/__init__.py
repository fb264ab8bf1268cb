"""Alerts: rules that look at a run and say what a person should look at."""
