"""A crew of two roles built with CrewAI, its policy, and the script that trains one of the roles."""
