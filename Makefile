# Two commands do everything: `make demo` and `make test`; `make` alone lists the others.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRA := $(if $(shell nvidia-smi -L 2>/dev/null),gpu,cpu)
# A module is compiled when it is imported first: of what is installed, few ever are.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e
SERVE := $(VENV)/.serve
TEST := $(VENV)/.test
COLLECTED := $(VENV)/.collected
PYTEST := $(BIN)/python -m pytest
# Tests wait for processes more than they compute, so there are more of them than cores. A file's
# tests share servers, so a file stays in one process; all that load PyTorch are in one, which
# begins with them, and all that need a broker in one (`tests/conftest.py`); long files are
# collected first. A process that dies ends the run and is named: with another in its place the run
# has been seen to hang.
PARALLEL := --numprocesses 4 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

# A process of these has a core to itself, so that more threads would be in each other's way.
SIMULATION := tests/simulation

.PHONY: help demo run test soak soak-loads soak-seeds long test-fast format coverage bench lint docs model clean
.DELETE_ON_ERROR:
# Programs that are started again and again are compiled once, whatever the machine prefers.
unexport PYTHONDONTWRITEBYTECODE

help:  ## Lists what make can do.
	@sed -n 's/^\([a-z-]*\):.*## /make \1	/p' $(MAKEFILE_LIST) | expand -t 16

demo: $(SERVE)  ## Prepares the built-in model, starts the server, asks it, stops it.
	$(BIN)/python prepare_model.py
	$(BIN)/python examples/demo.py

run: model  ## Serves on port 9999 until Ctrl-C.
	@exec $(BIN)/python server.py

# PyTorch's threads would wait for one another in loops, which take a core.
test test-fast: export OMP_NUM_THREADS := 1

test: $(COLLECTED)  ## Runs every test but those of `make soak` and `make long`: 6 minutes on two cores.
	$(PYTEST) $(PARALLEL) -m "not soak and not long" --durations 20

soak: $(TEST)  ## Runs long loads one by one, and meanwhile 10,000 simulated machines: 6 minutes.
	$(MAKE) --jobs 2 --output-sync=target soak-loads soak-seeds

soak-loads:
	$(PYTEST) -m soak --ignore $(SIMULATION)

# The loads mostly wait, and some are measured: the seeds take only what they leave of the cores.
soak-seeds:
	OMP_NUM_THREADS=1 nice -n 19 \
		$(PYTEST) -m soak --numprocesses auto --max-worker-restart 0 $(SIMULATION)

long: $(TEST)  ## Runs what rarely finds a fault: before a library is changed, or what uses Ray.
	$(PYTEST) -m long tests/fault
	OMP_NUM_THREADS=1 $(PYTEST) -m long --numprocesses auto --max-worker-restart 0 \
		tests/integration tests/unit

test-fast: $(COLLECTED)  ## Runs the tests to run while you write: no faults, no slow ones.
	$(PYTEST) $(PARALLEL) -m "not soak and not long and not slow" tests/integration tests/unit

format: $(TEST)  ## Formats the code, and mends what ruff can mend.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

coverage: $(TEST)  ## Runs the unit tests and says which lines none of them runs.
	$(PYTEST) $(PARALLEL) tests/unit --cov qa_service --cov-report term-missing:skip-covered

bench: $(TEST)  ## Measures latency and throughput of this server on this machine.
	$(BIN)/python stress_test.py --sweep --sessions 1,2

lint: $(TEST)  ## Checks style, format and types.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(TEST)  ## Makes the site of documents, build/site, with search and the clients' reference.
	$(BIN)/python -m harness.site
	$(BIN)/mkdocs build --quiet

model: $(SERVE)  ## Installs what serving needs and prepares the built-in model.
	$(BIN)/python prepare_model.py

$(SERVE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or later is needed: make PYTHON=python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing .[$(EXTRA)] into $(VENV) (minutes the first time)"
	@$(INSTALL) '.[$(EXTRA)]'
	@touch $@

$(TEST): $(SERVE)
	@$(INSTALL) '.[$(EXTRA),test]'
	@touch $@

# Pytest compiles a test module when it is collected first: here once, not in four processes.
$(COLLECTED): $(TEST)
	@-$(PYTEST) --collect-only -qq -m "not soak and not long" >/dev/null
	@touch $@

clean:  ## Removes the environment and the prepared models.
	rm -rf $(VENV) build saved_models/*/ saved_models/.*.lock
