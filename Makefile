# Two commands are enough: `make demo` and `make test`. Both set up what they need.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
DEMO   ?= runs/demo

.PHONY: help demo test check bench results tiny clean

help:
	@echo "make demo     train the SQL agent's writer and rewriter on this machine (minutes)"
	@echo "make test     run all tests"
	@echo "make check    ruff, mypy --strict and the layer contract"
	@echo "make bench    gateway, engine, merging and import benchmarks"
	@echo "make results  make the table of docs/results.md (two warm starts, three seeds each)"
	@echo "make tiny     make the shipped policy anew from its recipe"
	@echo "make clean    remove environments, caches and runs"

PLUGINS := langgraph autogen openai_agents

$(READY): pyproject.toml constraints.txt $(PLUGINS:%=plugins/%/pyproject.toml)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]" $(PLUGINS:%=-e plugins/%)
	@touch $(READY)

demo: $(READY)
	env -u OPENAI_API_KEY -u OPENAI_BASE_URL $(BIN)/agentlightning train examples/sql/train.py --folder $(DEMO)-$$(date +%Y%m%d-%H%M%S)

test: $(READY)
	$(BIN)/pytest -n 2 --dist loadfile

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)
	$(BIN)/python -m benchmarks

results: $(READY)
	env -u OPENAI_API_KEY -u OPENAI_BASE_URL $(BIN)/python -m benchmarks.sql

tiny: $(READY)
	$(BIN)/python -m recipes.tiny --seed 0 --out lightning_core/models/tiny

clean:
	rm -rf $(VENV) build dist .data runs .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
