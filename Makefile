# Two commands do everything: `make demo` and `make test`. The README has the same as plain lines.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
GPU := $(shell nvidia-smi -L 2>/dev/null | head -n 1)
REQUIREMENTS := $(if $(GPU),requirements.txt,requirements-cpu.txt)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
SERVE := $(VENV)/.serve
TEST := $(VENV)/.test

.PHONY: demo run test lint model clean
.DELETE_ON_ERROR:

demo: model  ## Prepares the built-in model, starts the server, asks three questions, stops it.
	$(BIN)/python examples/demo.py

run: model  ## Serves on port 9999 until Ctrl-C.
	@exec $(BIN)/python server.py

test: $(TEST)  ## Runs all tests.
	$(BIN)/python -m pytest

lint: $(TEST)  ## Style, format and types.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

model: $(SERVE)
	$(BIN)/python prepare_model.py

$(SERVE): $(REQUIREMENTS) requirements-serve.txt requirements-common.txt constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or later is needed: make PYTHON=python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing $(REQUIREMENTS) into $(VENV) (minutes the first time)"
	@$(PIP) -r $(REQUIREMENTS)
	@touch $@

$(TEST): $(SERVE) requirements-test.txt requirements-bench.txt
	@$(PIP) -r requirements-test.txt
	@touch $@

clean:
	rm -rf $(VENV) saved_models/*/ saved_models/.*.lock
