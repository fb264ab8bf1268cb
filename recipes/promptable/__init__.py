"""A SQL policy that reads instructions: the tiny one after some minutes of prompts that name conventions.

    python -m recipes.promptable --seed 0 --out DIR

The policy that ships can't read instructions, so no instruction can make it better. This one starts from the
shipped weights, with its vocabulary. It is shown the writer's prompt with up to four sentences about
conventions (`sentences`), and queries that follow them (`corpus`). It is the policy of the benchmark of
searches for prompts, `python -m research.prompts`, which makes it when it is missing.
"""
