"""Messages of a shop's customers, sorted by a team of AutoGen agents, and the script that trains it."""
