"""An agent without a framework, run as a process of its own, and the script that trains it."""
