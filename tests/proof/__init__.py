"""The attribution proof: all frameworks in one process, thousands of calls at once, through the real gateway.

    python -m tests.proof

Every prompt says which rollout and agent it truly comes from. Afterwards each call in the store is compared
with what its prompt says, and the number of calls with what the apps should have made. The table shows every
framework and shape; one wrong or missing call fails the command.
"""
