# Two commands for a newcomer: `make train`, `make test`. Each sets up .venv first on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: train test test-full check bench bench-gpu docs clean help

help:
	@echo "make train      set up, then train the default recipe"
	@echo "make test       set up, then check and test (under 12 minutes on 2 cores)"
	@echo "make test-full  every count: kills, matrices (under 50 minutes on 2 cores)"
	@echo "make check      formatting, lint, types, house style"
	@echo "make bench      the project beside hand-written loops, on this CPU"
	@echo "make bench-gpu  the same on an NVIDIA GPU, with other frameworks"
	@echo "make docs       check that the documentation names what exists"

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@

train: $(VENV)/.installed
	$(BIN)/python -m trainer4090

check: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/python -m pytest tests/test_style.py

test: check
	$(BIN)/python -m pytest -n 2 --dist loadscope -m "not full and not gpu and not gpu2"

test-full: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n 2 -m "full and not gpu and not gpu2"

bench: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.loader
	$(BIN)/python -m benchmarks.tokens

bench-gpu: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks.gpu

docs: $(VENV)/.installed-test
	$(BIN)/python -m pytest tests/test_docs.py

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache
