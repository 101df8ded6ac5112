# make setup          the environment in VENV (default .venv), with PYTHON (default: the first that fits)
# make test           the tests; TESTS=tests/launch runs some of them
# make check          what a commit must pass: format, lint, types, tests
# make format         let ruff rewrite the layout
# make requirements   renew the versions that requirements/ci.txt pins
# make clean          remove what builds and tools leave behind; never VENV or runs
VENV ?= .venv
PYTHON ?=
TESTS ?= tests
PYTEST_FLAGS ?= -n 2
BIN := $(VENV)/bin
READY := $(VENV)/.requirements-installed

.PHONY: setup test check lint types format requirements clean

setup: $(READY)

$(READY): setup.py requirements/ci.txt .ci/set_up
	@.ci/set_up "$(VENV)" "$(PYTHON)"
	@touch "$@"

test: $(READY)
	@$(BIN)/python -m pytest $(PYTEST_FLAGS) $(TESTS)

check: lint types test

lint: $(READY)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .

types: $(READY)
	@$(BIN)/mypy

format: $(READY)
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --select I --fix .

# One file for Python 3.11 to 3.13 on any system: uv writes which line is for whom.
requirements: $(READY)
	@$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --extra dev \
		--no-header --no-annotate setup.py --output-file requirements/ci.unheaded
	@{ sed -n '/^#/p' requirements/ci.txt; cat requirements/ci.unheaded; } > requirements/ci.new
	@mv requirements/ci.new requirements/ci.txt && rm requirements/ci.unheaded

clean:
	@rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
	@find bert_jax data_pipeline configs tests -name __pycache__ -type d -prune -exec rm -rf {} +
