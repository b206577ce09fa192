# headrace. `make help` lists what there is. A fresh machine needs Python >= 3.11, cargo and a C compiler.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
SOURCES := $(shell find crates -name '*.rs' -o -name Cargo.toml) Cargo.toml Cargo.lock pyproject.toml
LAB_SOURCES := $(shell find lab/crates -name '*.rs' -o -name Cargo.toml) Cargo.toml Cargo.lock lab/pyproject.toml

# A workspace of its own; what it builds without coverage counters has a folder beside the others' (tests/fuzz/run.py).
FUZZ := --manifest-path tests/fuzz/Cargo.toml
FUZZ_CARGO := CARGO_TARGET_DIR=target/fuzz-test cargo
SECONDS ?= 60

LAB := fan-out loss-sweep cold-start stop nat-rebind

.DEFAULT_GOAL := help
.PHONY: help demo test check fuzz bench bench-quick lab build format clean

help:  ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

demo: $(VENV)/model  ## set everything up and play the worked example with a real model
	@$(BIN)/headrace demo

test: $(VENV)/test $(VENV)/model $(VENV)/thin  ## run all tests, Rust's and Python's
	cargo test --quiet -p headrace-core -p headrace-emulator
	cargo test --quiet --release -p headrace-net -p headrace-sim
	$(FUZZ_CARGO) test --quiet $(FUZZ)
	$(BIN)/python -m pytest

check: $(VENV)/test $(VENV)/check  ## formatting, lints, types: everything that needs no running
	cargo fmt --check
	cargo clippy --quiet --workspace --all-targets -- --deny warnings
	cargo fmt --check --manifest-path tests/fuzz/Cargo.toml
	$(FUZZ_CARGO) clippy --quiet $(FUZZ) --all-targets -- --deny warnings
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest headrace._engine headrace_lab._emulator

fuzz:  ## what parses peers' bytes against libFuzzer, a minute for each parser (SECONDS=60); needs a C++ compiler
	@$(PYTHON) tests/fuzz/run.py --seconds $(SECONDS)

bench: $(VENV)/bench  ## measure against Caddy, Envoy and other clients (over an hour); results in lab/bench/results/
	$(BIN)/python -m bench

bench-quick: $(VENV)/bench  ## the same measurements, short, nothing kept: to see whether something got worse
	$(BIN)/python -m bench --quick

lab: $(VENV)/lab  ## what each protocol does to tokens, quick: five scenarios and a page with plots (six minutes)
	@$(BIN)/headrace lab run $(LAB) --quick $$([ "$$(id -u)" = 0 ] || echo --on relay)
	@$(BIN)/headrace lab report

build: $(VENV)/build  ## build the engine into a virtual environment

format: $(VENV)/check  ## format Rust and Python
	cargo fmt
	$(BIN)/ruff format --quiet .
	$(BIN)/ruff check --quiet --fix .

clean:  ## remove what was built
	rm -rf $(VENV) target

$(BIN)/maturin:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "headrace needs Python 3.11 or newer; this is $$($(PYTHON) --version). Try: make PYTHON=python3.12"; exit 1; }
	@command -v cargo > /dev/null || { echo "headrace needs cargo (Rust): see https://rustup.rs"; exit 1; }
	@command -v cc > /dev/null || { echo "headrace needs a C compiler: install gcc or clang"; exit 1; }
	@echo "making a virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --upgrade 'pip>=25.1'
	@$(PIP) 'maturin>=1.16,<2'

$(VENV)/build: $(BIN)/maturin $(SOURCES)
	@echo "building the engine (a minute or two when it is new)"
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/maturin develop --release --quiet
	@$(PIP) 'headrace[local]'  # An extra that names another one can be had when headrace is there.
	@touch $@

# The lab is a distribution of its own, beside the product in the same environment.
$(VENV)/lab-build: $(LAB_SOURCES) | $(VENV)/build
	@echo "building the lab's emulator"
	@cd lab && VIRTUAL_ENV=$(CURDIR)/$(VENV) $(CURDIR)/$(BIN)/maturin develop --release --quiet
	@touch $@

$(VENV)/model: $(VENV)/build
	@$(BIN)/headrace model install
	@touch $@

$(VENV)/test: $(VENV)/build $(VENV)/lab-build pyproject.toml
	@echo "installing what the tests need"
	@$(PIP) --group test
	@touch $@

# headrace as a client has it: the wheel in an empty environment, where no other package can come along
# (--no-index), and beside it the SDK of one recipe.
$(VENV)/thin: $(VENV)/build pyproject.toml
	@echo "installing the wheel in an environment of its own"
	@rm -rf $@-wheel && $(BIN)/maturin build --release --quiet --out $@-wheel
	@$(PYTHON) -m venv --clear $@-client
	@$@-client/bin/python -m pip install --quiet --disable-pip-version-check --no-index $@-wheel/headrace-*.whl
	@$@-client/bin/python -m pip install --quiet --disable-pip-version-check "$$(grep -o 'openai==[0-9.]*' pyproject.toml)"
	@touch $@

$(VENV)/check: $(VENV)/build $(VENV)/lab-build pyproject.toml
	@$(PIP) --group check
	@touch $@

$(VENV)/lab: $(VENV)/build $(VENV)/lab-build lab/pyproject.toml
	@echo "installing what the lab compares with"
	@$(PIP) 'headrace-lab[peers]'
	@touch $@

$(VENV)/bench: $(VENV)/build $(VENV)/lab-build lab/pyproject.toml
	@$(PIP) --group lab/pyproject.toml:bench
	@touch $@
