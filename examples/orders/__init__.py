"""Orders in plain English, read into a form by an OpenAI Agents SDK agent, and the script that trains it."""
