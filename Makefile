# lowtide from a fresh machine: python >= 3.11, make and g++ are all it takes; cmake and ninja come from pip.
#
#   make demo      train a GPT-2 plainly and inside half of the memory, and compare every bit
#   make test      C++ tests under sanitizers, and the Python suite: ten minutes on two cores
#   make test-all  the same with every network of the zoo, more random examples, and C++ tests without sanitizers
#   make check     format, lint, types, architecture and the tests that need no torch; two minutes
#   make docs      the guide and the reference as HTML in build/docs; a warning is an error
#   make bench     regenerate benchmarks/results/ from real runs; benchmarks/README.md says what each file takes
#   make zoo       one small network of every family that transformers, timm and torchvision register, at three budgets
#   make rounds    the tests again under the arithmetic of other processors, on two threads, beside a busy neighbour
#   make releases  the tests with the newest torch, transformers, timm and torchvision, on every Python; for a scheduled job
#   make install   only the environment, in .venv
#   make clean     remove what the above made

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help install demo test test-all check docs bench zoo rounds releases clean format core-test core-test-plain

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --disable-pip-version-check --quiet -c constraints.txt
CORE := CMakeLists.txt $(wildcard src/core/*.cpp src/core/*.hpp)
# The first Python that will do; override with `make PYTHON=...`.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
  $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$p && break; done)
JOBS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$(( n < 8 ? n : 8 )))
# No torch, or no device work: seconds each.
DEVICE_FREE := $(wildcard tests/test_*.py tests/arena tests/ir tests/planners tests/placers tests/report \
  tests/docs/test_commands.py tests/docs/test_reference.py)
# What writes a results file, by a line `RESULTS = ...`; three of them take too long to be among the others.
BENCHMARKS = $(filter-out benchmarks/fidelity/rounds.py benchmarks/fidelity/releases.py benchmarks/fidelity/zoo.py,$(shell grep -l '^RESULTS = ' benchmarks/*/*.py))

export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export PYTHONDONTWRITEBYTECODE :=
unexport PYTHONPATH

help:
	@sed -n 's/^#   //p' Makefile

# --- environment: stamps, so that a repeated make costs nothing ---------------------------------------------------

$(VENV)/.made:
	@test -n "$(PYTHON)" || { echo "lowtide needs Python 3.11, 3.12 or 3.13 as python3 or, say, python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make environments: install its venv package (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@$(PYTHON) -c 'import os, sys, sysconfig; \
	  sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))' || { \
	  echo "$(PYTHON) has no Python.h: install its headers (Debian, Ubuntu: apt install python3-dev)" >&2; exit 1; }
	@command -v g++ >/dev/null || command -v c++ >/dev/null || { \
	  echo "no C++ compiler: install g++ (Debian, Ubuntu: apt install g++)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

# Editable: Python files are used where they lie; a changed core or pyproject.toml builds anew.
$(VENV)/.package: $(VENV)/.made pyproject.toml constraints.txt $(CORE)
	$(PIP) -e .
	@touch $@

$(VENV)/.demo: $(VENV)/.package
	$(PIP) 'transformers>=5.0'
	@touch $@

$(VENV)/.test: $(VENV)/.demo
	@mkdir -p build
	@$(PY) -c 'import tomllib; e = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; \
	  print(*e["test"], *e["docs"], *e["dev"], sep="\n")' > build/requirements.txt
	$(PIP) -r build/requirements.txt cmake ninja
	@touch $@

$(VENV)/.docs: $(VENV)/.package
	@mkdir -p build
	@$(PY) -c 'import tomllib; e = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; \
	  print(*e["docs"], sep="\n")' > build/requirements-docs.txt
	$(PIP) -r build/requirements-docs.txt
	@touch $@

install: $(VENV)/.demo

# --- what a user runs -----------------------------------------------------------------------------------------------

demo: $(VENV)/.demo
	$(VENV)/bin/lowtide demo

bench: $(VENV)/.test
	@test -n "$(BENCHMARKS)" || { echo "no benchmarks found" >&2; exit 1; }
	for file in $(BENCHMARKS); do name=$${file%.py}; $(PY) -m "$${name//\//.}"; done

zoo: $(VENV)/.test
	$(PY) -m benchmarks.fidelity.zoo

rounds: $(VENV)/.test
	$(PY) -m benchmarks.fidelity.rounds

releases: $(VENV)/.test
	$(PY) -m benchmarks.fidelity.releases

docs: $(VENV)/.docs
	$(PY) -m sphinx -W --keep-going -q -b html docs build/docs
	@echo "build/docs/index.html"

# --- what a contributor runs ----------------------------------------------------------------------------------------

core-test: $(VENV)/.test
	cmake -S . -B build/core-sanitized -G Ninja -DLOWTIDE_EXTENSION=OFF -DLOWTIDE_TESTS=ON -DLOWTIDE_SANITIZE=address >/dev/null
	cmake --build build/core-sanitized
	ctest --test-dir build/core-sanitized -j $(JOBS) --output-on-failure --no-tests=error
	cmake -S . -B build/core-threads -G Ninja -DLOWTIDE_EXTENSION=OFF -DLOWTIDE_TESTS=ON -DLOWTIDE_SANITIZE=thread >/dev/null
	cmake --build build/core-threads
	ctest --test-dir build/core-threads -j $(JOBS) --output-on-failure --no-tests=error

core-test-plain: $(VENV)/.test
	cmake -S . -B build/core -G Ninja -DLOWTIDE_EXTENSION=OFF -DLOWTIDE_TESTS=ON >/dev/null
	cmake --build build/core
	ctest --test-dir build/core -j $(JOBS) --output-on-failure --no-tests=error

# A file of tests stays with one worker, long ones first (tests/conftest.py); one thread each, or the workers' threads
# would wait for each other.
PYTEST = OMP_NUM_THREADS=1 $(PY) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

test: core-test
	$(PYTEST) -m "not breadth"

test-all: core-test core-test-plain
	LOWTIDE_EXAMPLES=400 $(PYTEST)

check: $(VENV)/.test
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/ruff check
	MYPYPATH=src $(VENV)/bin/mypy
	@for folder in src/lowtide/*/ src/core/; do \
	  printf '%6d lines  %s\n' "$$(find "$$folder" -name '*.py' -o -name '*.[ch]pp' | xargs -r cat | wc -l)" "$$folder"; done
	$(PY) -m pytest -q $(DEVICE_FREE)

format: $(VENV)/.test
	$(VENV)/bin/ruff format
	$(VENV)/bin/ruff check --fix

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis plan.json plan.html memory.svg
