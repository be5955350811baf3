# `make gsm8k`  the environment (once), then the main job: TBA trains the embedded policy on this machine
# `make test`   the environment (once), then every check: lint, types, layers, tests with coverage
#
# The environment is chosen by the hardware: PROFILE=cpu or gpu overrides. Locks: requirements/*.txt, see `make lock`.

PYTHON  ?= python3
PROFILE ?= $(shell test -e /proc/driver/nvidia/version && echo gpu || echo cpu)
# Processes that share the tests between them. One thread of torch for each.
WORKERS ?= 2
VENV    := .venv
BIN     := $(VENV)/bin
RUNTIME := $(VENV)/.runtime-$(PROFILE)
DEV     := $(VENV)/.dev
TASKS   := $(wildcard tasks/*/pyproject.toml)

# The CPU build of torch carries a local version (+cpu) that PyPI does not hold: where the configured index has none,
# take it from PyTorch's own.
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu

# Everything runs offline once installed; a hub is asked only when HF_HUB_OFFLINE=0 is given.
export HF_HUB_OFFLINE ?= 1

.PHONY: gsm8k chaos resume-check bench test check lint types layers unit lock clean help
.DEFAULT_GOAL := help

help:
	@grep -E '^#' Makefile | head -4 | cut -c3-
	@echo 'make check    lint, types and layers only;  make unit   the fast tests only;  make chaos   200 faults;'
	@echo 'make resume-check   ten runs killed and resumed, compared bit for bit;  make bench   short speed measurements'

# 200 seeded faults over all kinds and phases, one small run each.
chaos: $(RUNTIME)
	$(BIN)/tbactl chaos --seed 0 --faults 200 --notice-bound 2

# Runs killed at ten random moments and resumed, against one without interruption. Checksums are printed.
resume-check: $(RUNTIME)
	$(BIN)/python -m benchmarks.bit_exact_resume

# The short forms of all speed benchmarks. Quietly: what else the machine does shows. docs/performance.md
bench: $(DEV)
	$(BIN)/python -m benchmarks.matmul --short
	$(BIN)/python -m benchmarks.trainer_speed --short
	$(BIN)/python -m benchmarks.searcher_speed --short
	$(BIN)/python -m benchmarks.memory --short
	$(BIN)/python -m benchmarks.ipc --short
	$(BIN)/python -m benchmarks.start --short
	$(BIN)/python -m benchmarks.replay --sizes 10000 --no-peer --results runs/bench/replay.json
	$(BIN)/python -m benchmarks.time_to_accuracy runs/bench/time-to-accuracy-$$(git describe --always --dirty) --seeds 0 --budget-minutes 0.5 --num-prompts 128

gsm8k: $(RUNTIME)
	$(BIN)/tbactl run gsm8k

# By file: engines and learners of a file are made once. Slow files come first in the tree's order.
test: $(DEV) check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder \
	    --cov --cov-report=term:skip-covered --cov-fail-under=85

unit: $(DEV)
	$(BIN)/python -m pytest -m 'not slow'

check: lint types layers

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV)
	$(BIN)/pyright

layers: $(DEV)
	$(BIN)/lint-imports

# --no-deps: the lists are complete, and two packages name torchvision and torchaudio, whose PyPI builds break beside a
# CPU torch and which nothing here uses.
$(RUNTIME): requirements/$(PROFILE).txt pyproject.toml $(TASKS)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tbactl needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements/$(PROFILE).txt || \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements/$(PROFILE).txt \
	    --extra-index-url $(TORCH_CPU_INDEX)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
	    -e . $(foreach task,$(TASKS),-e $(dir $(task)))
	touch $@

$(DEV): $(RUNTIME) requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements/dev.txt
	touch $@

# Rewrites the locks from requirements/*.in (needs uv). torchgfn and what it imports stay as they are in dev.txt.
lock:
	uv pip compile --quiet --no-annotate --no-header --python-version 3.11 requirements/cpu.in | \
	    grep -vE '^(torchvision|torchaudio|torchcodec)==' > requirements/cpu.txt
	uv pip compile --quiet --no-annotate --no-header --python-version 3.11 \
	    --python-platform x86_64-manylinux_2_28 requirements/gpu.in > requirements/gpu.txt

clean:
	rm -rf $(VENV) runs
