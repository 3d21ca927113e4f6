# The table of contents: every command of the README is here.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TESTS := -m "not gpu and not slow"
export OMP_NUM_THREADS ?= 1

NOT_QUICK := --ignore=tests/field --ignore=tests/benchmarks --ignore=tests/migrations --ignore=tests/e2e

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-quick test-slow test-pg test-browser test-gpu soak lint type format bench bench-gpu serve worker lock clean

help:  ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

setup: $(STAMP)  ## make the virtual environment and install what the lock names

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PYTHON=python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

demo: setup  ## server, two CPU workers, the example experiment, its verdict; leaves nothing running (PORT=7480)
	@$(BIN)/lockstep demo $(if $(PORT),--port $(PORT))

serve: setup  ## API, live streams and pages on http://127.0.0.1:7480 (PORT=7480)
	$(BIN)/lockstep serve $(if $(PORT),--port $(PORT))

worker: setup  ## one worker for a server of this machine: the first free GPU, else the first free CPU slot (PORT=7480)
	$(BIN)/lockstep worker $(if $(PORT),--api http://127.0.0.1:$(PORT))

test: setup  ## everything but gpu and slow
	tests/prepare.sh $(BIN)
	$(BIN)/pytest -n 2 --dist loadgroup $(TESTS)

test-quick: setup  ## no network, GPU, server or browser; not what takes seconds: whole systems, benchmarks, migrations
	$(BIN)/pytest -n 2 -m "not gpu and not slow and not long and not server and not browser and not pg" $(NOT_QUICK)

test-slow: setup  ## the full number of random trials
	$(BIN)/pytest -m slow

test-pg: setup  ## what needs PostgreSQL
	$(BIN)/pytest -m pg

test-browser: setup  ## what needs chromium
	tests/prepare.sh $(BIN)
	$(BIN)/pytest -m browser

test-gpu: setup  ## on a machine with an NVIDIA GPU
	$(BIN)/pytest -m gpu

soak: setup  ## the field lessons at their full size
	LOCKSTEP_SOAK=1 $(BIN)/pytest tests/field

lint: setup  ## ruff, formatting, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

type: setup  ## mypy --strict
	$(BIN)/mypy

format: setup  ## write what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench-gpu:  ## everything that needs an NVIDIA GPU (see benchmarks/gpu.sh)
	benchmarks/gpu.sh build/gpu tests speed engine precision service headroom

bench: setup  ## short forms of the benchmarks
	$(BIN)/python benchmarks/report_speed.py

lock:  ## pin what is installed in a fresh environment
	$(BIN)/python -m pip freeze --exclude-editable --exclude lockstep > requirements.lock

clean:  ## remove what set-up and tests made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
