"""Texts from outside and for outside: JSON that is read, secrets that are masked, terminals that are safe."""
