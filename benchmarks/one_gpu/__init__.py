"""Checks of engine and update on one card, then a table of speed and memory (`scripts/gpu_check`)."""
