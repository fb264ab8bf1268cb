"""What one card does: checks of engine and update, then a table of speed and memory (`scripts/gpu_check`)."""
