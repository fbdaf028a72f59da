# Everything that a newcomer or CI runs. `make demo` and `make test` need Python >= 3.11, git and a compiler, nothing else.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PACKAGES := core models backends-cpu backends-cuda backends-rocm backends-tpu backends-xpu plugins/anthropic plugins/bench plugins/embeddings plugins/gguf plugins/grammar plugins/hub plugins/int8 plugins/ollama plugins/parsers plugins/policies plugins/quantization plugins/ray plugins/speculators plugins/statsd plugins/testing plugins/triton plugins/web
SOURCES := $(PACKAGES:%=%/src)
METADATA := constraints.txt pyproject.toml $(PACKAGES:%=%/pyproject.toml) $(wildcard backends-cpu/native/*)
EDITABLE := $(PACKAGES:%=-e ./%)
# What the demo needs: the wheels of llmk[cpu], or of llmk[all] on a machine with an NVIDIA GPU.
NVIDIA := $(shell command -v nvidia-smi)
DEMO := core[chat,storage] models backends-cpu plugins/gguf plugins/hub plugins/parsers plugins/policies plugins/quantization plugins/web $(if $(NVIDIA),backends-cuda plugins/triton)
# Modules are compiled where they are first imported, or all of them at once by several processes, rather than by pip.
INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-compile -c constraints.txt
# What builds the wheels: of packages in Python, and of backends-cpu's library in C++.
BUILD := setuptools scikit-build-core $(if $(shell command -v cmake),,cmake) $(if $(shell command -v ninja),,ninja)
PYTEST_ARGS ?=
# One more than there are processors: many tests wait for servers, rather than compute.
JOBS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
# Threads that spin while they wait would take the processors from one another, and without bytecode each of the tests'
# processes compiles all modules that it imports.
THREADS := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive PYTHONDONTWRITEBYTECODE=

.DEFAULT_GOAL := help
.PHONY: help demo test full unit clients lint contracts types dead security format size words docs site snapshot wheels carry kernels triton-versions clean distclean

help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.installed-demo ## Set up, serve the embedded demo model, and show an answered chat.
	@$(BIN)/python tools/demo.py

CHECKS := lint contracts types dead security size words site

test: $(VENV)/.installed-test ## Set up and run everything that CI runs: all checks, all quick tests, a sample of the slow ones.
	@$(MAKE) --no-print-directory -j2 -Otarget $(CHECKS)
	@$(MAKE) --no-print-directory unit

full: PYTEST_ARGS += --full
full: $(CHECKS) unit kernels ## Run everything: all slow tests too, and every kernel compiled for every GPU. About an hour.

unit: $(VENV)/.installed-test ## Run the tests alone. PYTEST_ARGS is passed on (--full: all); JOBS=1 runs them one at a time.
	$(THREADS) $(BIN)/python tools/run_tests.py -n $(JOBS) $(PYTEST_ARGS)

clients: $(VENV)/.installed-test ## Run the suites of all client libraries, each at its newest version. Needs a package index; npm for Node's.
	$(THREADS) $(BIN)/python -m pytest -q --full -rs tests/clients

lint: $(VENV)/.installed-test ## Check style and formatting.
	$(BIN)/ruff check --quiet --output-format concise .
	$(BIN)/ruff format --check --output-format concise .

contracts: $(VENV)/.installed-test ## Check the import contracts: floors, plugins, torch-free packages.
	$(BIN)/lint-imports --no-logo

types: $(VENV)/.installed-test ## Check types.
	$(BIN)/mypy $(SOURCES) tools

dead: $(VENV)/.installed-test ## Find code that nothing uses.
	$(BIN)/python tools/dead_code.py

security: $(VENV)/.installed-test ## Look for what attackers look for (bandit).
	$(BIN)/bandit -q -c pyproject.toml -r $(SOURCES) tools

format: $(VENV)/.installed-test ## Format, and fix what can be fixed.
	$(BIN)/ruff check --quiet --fix .
	$(BIN)/ruff format --quiet .

size: $(VENV)/.installed-test ## Report lines per package, and fail where a file or function is too long.
	$(BIN)/python tools/size_report.py

words: $(VENV)/.installed-test ## Find old idioms in names, comments, errors and docs, and what to write instead.
	$(BIN)/python tools/word_list.py

docs: $(VENV)/.installed-test ## Write what pages have from the code (options, routes, hooks, kernels, wheels), and wrap all pages.
	$(BIN)/python tools/pages.py --write

site: $(VENV)/.installed-test ## Build the site of docs/ into build/site; a link that leads nowhere fails.
	$(BIN)/mkdocs build --quiet --strict

snapshot: ## Write the snapshot of llmk.api's signatures again.
	$(PYTHON) tools/api_snapshot.py --write

triton-versions: $(VENV)/.installed-test ## Test the Triton kernels with every release of Triton that the wheels allow.
	$(BIN)/python tools/triton_versions.py

kernels: $(VENV)/.installed-test ## Compile every Triton kernel for every GPU that it is meant for, in about 20 minutes.
	$(BIN)/python plugins/triton/tests/ahead_of_time.py

wheels: $(VENV)/.installed ## Build one wheel per distribution, into dist/.
	$(BIN)/python -m pip wheel -qq --no-deps --no-build-isolation -w dist $(PACKAGES:%=./%) .

carry: wheels ## Put llmk's wheels, and what it needs on a machine with a GPU and no network, into .carry/.
	$(BIN)/python -m pip download -qq --no-deps --only-binary :all: --python-version 3.12 --implementation cp \
		--platform manylinux_2_28_x86_64 --platform manylinux_2_26_x86_64 --platform manylinux2014_x86_64 \
		-d .carry -r tools/gpu_requirements.txt
	rm -f .carry/llmk*.whl
	cp dist/*.whl .carry/

clean: ## Remove caches and build outputs.
	rm -rf dist build .carry .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find $(PACKAGES) tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf $(PACKAGES:%=%/build)

distclean: clean ## As clean, and remove the virtual environment too.
	rm -rf $(VENV)

$(VENV)/.created:
	@echo "Creating $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "llmk needs Python 3.11 or newer; name one with: make PYTHON=...")'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python tools/cpu_torch.py
	@touch $@

$(VENV)/.installed-build: $(VENV)/.created
	@$(INSTALL) $(BUILD)
	@touch $@

$(VENV)/.installed-demo: $(VENV)/.installed-build $(METADATA)
	@echo "Installing llmk into $(VENV); torch is large, so this may take some minutes the first time"
	@$(INSTALL) --no-build-isolation $(DEMO:%=-e ./%)
	@touch $@

$(VENV)/.installed: $(VENV)/.installed-build $(METADATA)
	@echo "Installing all of llmk into $(VENV)"
	@$(INSTALL) --no-build-isolation $(EDITABLE)
	@touch $(VENV)/.installed-demo $@

$(VENV)/.installed-test: $(VENV)/.installed-build $(METADATA)
	@echo "Installing llmk and its test tools into $(VENV)"
	@$(INSTALL) --no-build-isolation $(EDITABLE) -e '.[test]'
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib $(SOURCES) >/dev/null 2>&1 || true  # files of other versions of Python do not compile
	@touch $(VENV)/.installed-demo $(VENV)/.installed $@
