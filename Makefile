# Two commands are all the set-up there is: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
BENCH ?= small london speed memory phase learn aden choices budget

.PHONY: demo test fuzz bench results lint format clean

demo: $(STAMP)
	$(BIN)/volition demo --out demo-results

test: $(STAMP) lint
	$(BIN)/python -m pytest -n 2 --dist worksteal --durations=15

# Inputs of all kinds on every reader, for half an hour: FUZZ_SECONDS=60 make fuzz for a minute.
FUZZ_SECONDS ?= 1800
fuzz: $(STAMP)
	FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/python tests/fuzz/runner.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# All benchmarks, or some: make bench BENCH="speed memory"
bench: $(STAMP)
	@for name in $(BENCH); do $(BIN)/python benchmarks/$$name.py || exit 1; done

# The paper's tables and figures, about an hour. Stopped, it goes on; all again with HOW=--overwrite
SHARED ?= ../shared
HOW ?= --resume
results: $(STAMP)
	$(BIN)/volition reproduce all $(HOW) --out docs/results \
		--data $(SHARED)/data/utd19_london.mat --published $(SHARED)/published
	$(BIN)/python docs/headlines.py

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $(STAMP)

clean:
	rm -rf .venv demo-results benchmarks/results fuzz-failures
