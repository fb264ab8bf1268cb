"""Collection of the plugins' tests, without the template, whose package is not installed here.

Google ADK can't be in one environment with CrewAI, so its tests run in the other one (see the Makefile).
"""

from importlib.util import find_spec

collect_ignore = ["_template", *(["google_adk"] if find_spec("lightning_google_adk") is None else [])]
