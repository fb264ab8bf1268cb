"""What a plugin's tests need: a server that plays the gateway, calls that carry the truth, and the laws.

Not imported by anything that runs in production. Needs the `openai` package.
"""
