"""A question-answering agent with a search tool (OpenAI Agents SDK), and what it is trained on."""
