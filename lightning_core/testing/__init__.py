"""The kit for a plugin's tests: a server that plays the gateway, calls that carry the truth, and the laws.

Not imported by anything that runs in production. Needs the `openai` package.
"""
