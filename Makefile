# `make demo` and `make test` set everything up themselves on a machine with python3, make and gcc.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup demo test test-full lint style bench docs browser clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -c constraints.txt -e '.[plots,docs,dev]'
	touch $(STAMP)

demo: setup
	$(BIN)/python examples/demo.py

lint: style
	$(BIN)/pyright

style: setup
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --no-cache --check .

# The browser tests drive Debian's Chromium, and axe-core of npm; where these can be neither found nor installed they say so
# by name.
browser: setup
	@command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } \
	  || { command -v sudo >/dev/null && sudo apt-get install -y -qq chromium >/dev/null; } \
	  || echo "chromium could not be installed: the browser tests will be skipped"
	@$(BIN)/python tests/browser/accessibility.py

# Most programs of the tests run for milliseconds and compile for seconds: these take 40% less time to compile, and as
# long to run.
COMPILE_QUICKLY := --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1 \
  --xla_backend_optimization_level=1 --xla_llvm_disable_expensive_passes=true
# A file stays with one worker, so that what it compiles is compiled once. Two workers fill two cores; threads within one
# gain nothing.
test test-full: export XLA_FLAGS = --xla_cpu_multi_thread_eigen=false $(COMPILE_QUICKLY)
test test-full: export OMP_NUM_THREADS = 1
# Half of the time goes into compiling. What one worker, one subprocess or one run compiled serves all others.
test test-full: export JAX_COMPILATION_CACHE_DIR = $(CURDIR)/$(VENV)/programs
test test-full: export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS = 0
test test-full: export JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES = -1
# types are checked beside the tests: alone they would leave a core idle
test: style browser
	$(BIN)/pyright & types=$$!; \
	$(BIN)/pytest -n 2 --dist loadfile --durations=25 -m 'not full'; tests=$$?; \
	wait $$types && exit $$tests

test-full: lint browser
	$(BIN)/pytest -n 2 --dist loadfile --timeout 3600

# The peer lives in an environment of its own: it does not import on the jax that widthwise uses.
PEER := .venv-peer
$(PEER)/.installed:
	$(PYTHON) -m venv $(PEER)
	$(PEER)/bin/pip install --quiet --upgrade pip
	$(PEER)/bin/pip install --quiet 'neural-tangents==0.6.5' 'jax==0.5.3' 'jaxlib==0.5.3'
	touch $@

bench: setup $(PEER)/.installed
	$(BIN)/python benchmarks/kernels.py --peer $(PEER)/bin/python
	$(BIN)/python benchmarks/finite.py
	$(BIN)/python benchmarks/pairs.py
	$(BIN)/python benchmarks/measure.py --peer $(PEER)/bin/python
	$(BIN)/python benchmarks/train.py
	$(BIN)/python benchmarks/criticality.py
	$(BIN)/python benchmarks/predict.py --sizes 8 16 32
	$(BIN)/python benchmarks/posterior.py
	$(BIN)/python benchmarks/first_calls.py
	$(BIN)/python benchmarks/linear_regions.py --large
	$(BIN)/python benchmarks/explorer.py
	$(BIN)/python benchmarks/labs.py --docs docs/labs

docs: setup
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) $(PEER) out site
