# make setup          the environment in VENV (default .venv), with PYTHON (default: the first that fits)
# make quickstart     build a corpus, train a small BERT on it, and let it guess words; it removes
#                     runs/quickstart first; SEED=1 takes that seed for weights, rows and masks
# make test           what a commit must pass, in about two minutes; TESTS=tests/data_pipeline runs some
# make test-slow      the others: whole commands, killed processes, launch, compiles for TPU slices
# make test-all       both, in about ten minutes
# make test-long      the tests marked long, about two hours: every page's commands, every family,
#                     other numbers of devices, most runs that are killed and resumed; weekly
# make faults         the battery of faults, also its long cases; resumes where it was stopped,
#                     FRESH=1 begins again
# make launch-weeks   the supervisor of TPU slices through 2,000 simulated weeks
# make mutants        wrong edits planted in a copy of the tree: the tests named for each must fail;
#                     EDITS="step.py watchdog" runs those whose file or text has one of the words
# make families       each family of encoders from its run to its uses, the longer ones too; compared
#                     with transformers where VENV has it and torch
# make parity         pre-train, fine-tune and extract compared with Hugging Face's PyTorch, from the
#                     same weights: DATA=DIR has GLUE's tasks, STORE=DIR what to pre-train on, by default
#                     make quickstart's; PARTS=pretraining runs one part; PARITY_VENV=ENV takes an
#                     environment with torch and transformers instead of making .venv-parity
# make exports        exports of drawn models of each family in transformers, the newest and 4.57:
#                     hidden states, logits, ids, and back; SHAPES=1 draws fewer, and
#                     EXPORTS_PYTHONS=A/bin/python,B/bin/python takes environments that are there
# make hand_over      the same exports in sentence-transformers, GLiNER and ONNX Runtime, each in an
#                     environment of its own: vectors, hidden states, logits; SHAPES=1 draws fewer, and
#                     HAND_OVER_PYTHONS=A/bin/python,B/bin/python,C/bin/python takes those that are there
# make notebooks      run the notebooks of examples/ again and keep what they print, in ten minutes
# make docs           this manual as a site in build/site, every link checked
# make docs-reference write the pages of settings, commands and results, and two pictures, again
# make check          what a commit must pass: format, lint, types, tests
# make format         let ruff rewrite the layout
# make requirements   renew the versions that requirements/ pins
# make clean          remove what builds and tools leave behind; never VENV or runs
VENV ?= .venv
PYTHON ?=
TESTS ?= tests
DATA ?= ../shared/data/glue
STORE ?= runs/quickstart/store
PARTS ?= losses,seeds,vectors,pretraining
PARITY_VENV ?=
EDITS ?=
SEED ?=
SEEDS := $(if $(SEED), --config.seed=$(SEED) --config.data.random_seed=$(SEED))
SHAPES ?= 10
EXPORTS_PYTHONS ?=
HAND_OVER_PYTHONS ?=
PYTEST_FLAGS ?= -n 2 --dist=worksteal
BIN := $(VENV)/bin
READY := $(VENV)/.requirements-installed
# Of what is needed to run alone; make setup has it as well.
RUNS := $(VENV)/.ready-to-run

QUICKSTART := runs/quickstart

.PHONY: help setup quickstart test test-slow test-all test-long faults launch-weeks mutants families parity exports hand_over notebooks docs docs-reference check lint types format requirements clean

help:
	@sed -n '/^#/!q; s/^# //p' Makefile

setup: $(READY)

$(READY): pyproject.toml setup.py requirements/ci.txt .ci/set_up
	@.ci/set_up "$(VENV)" "$(PYTHON)" "[dev]"
	@touch "$@" "$(RUNS)"

$(RUNS): pyproject.toml setup.py requirements/ci.txt .ci/set_up
	@.ci/set_up "$(VENV)" "$(PYTHON)" ""
	@touch "$@"

# The commands of README.md, shown as they run; a second call starts afresh. On the CPU everywhere:
# it is small enough, and an accelerator's packages may not be there.
quickstart: export JAX_PLATFORMS := cpu
quickstart: $(RUNS)
	@rm -rf $(QUICKSTART)
	$(BIN)/python -m data_pipeline.python_docs $(QUICKSTART)/python_docs.jsonl
	$(BIN)/python -m data_pipeline.build --input=$(QUICKSTART)/python_docs.jsonl \
		--output=$(QUICKSTART)/store --train_vocab=wordpiece --vocab_size=4096 --holdout=0.05
	$(BIN)/python -m bert_jax.train --config=configs/quickstart.py \
		--config.data.store=$(QUICKSTART)/store --workdir=$(QUICKSTART)$(SEEDS)
	$(BIN)/python -m bert_jax.fill_mask --checkpoint=$(QUICKSTART) --heldout=5

test: $(READY)
	@$(BIN)/python -m pytest $(PYTEST_FLAGS) -m "not slow and not long" $(TESTS)

test-slow: $(READY)
	@$(BIN)/python -m pytest $(PYTEST_FLAGS) --durations=10 -m "slow and not long" $(TESTS)

test-all: $(READY)
	@$(BIN)/python -m pytest $(PYTEST_FLAGS) -m "not long" $(TESTS)

test-long: $(READY)
	@$(BIN)/python -m pytest $(PYTEST_FLAGS) -m long --ignore=tests/faults $(TESTS)

faults: $(READY)
	@$(BIN)/python -m tests.faults $(if $(FRESH),--fresh)

launch-weeks: $(READY)
	@LAUNCH_WEEKS=2000 $(BIN)/python -m pytest -q -s tests/launch/test_weeks.py -k no_week

mutants: $(READY)
	@$(BIN)/python -m tests.mutants $(EDITS)

families: $(READY)
	@$(BIN)/python -m pytest -m "long or not long" tests/smoke/test_families.py \
		tests/bert_jax/model/test_disentangled.py

parity: export JAX_PLATFORMS := cpu
parity: $(READY)
	@$(BIN)/python -m benchmarks.parity --parts=$(PARTS) --data=$(DATA) --store=$(STORE) \
		$(if $(PARITY_VENV),--torch_python=$(PARITY_VENV)/bin/python) --json_out=build/parity.json

# Programs this small take longer to optimize than to run.
exports: export JAX_PLATFORMS := cpu
exports: export XLA_FLAGS := --xla_backend_optimization_level=0
exports: $(READY)
	@$(BIN)/python -m benchmarks.exports --shapes=$(SHAPES) \
		$(if $(EXPORTS_PYTHONS),--torch_pythons=$(EXPORTS_PYTHONS)) --json_out=build/exports.json

hand_over: export JAX_PLATFORMS := cpu
hand_over: export XLA_FLAGS := --xla_backend_optimization_level=0
hand_over: $(READY)
	@$(BIN)/python -m benchmarks.hand_over --shapes=$(SHAPES) \
		$(if $(HAND_OVER_PYTHONS),--pythons=$(HAND_OVER_PYTHONS)) --json_out=build/hand_over.json

# The notebooks themselves choose the CPU: an accelerator's numbers would differ.
notebooks: $(READY)
	@$(BIN)/python -m tests.docs.notebooks

# The variable silences the theme's notice of its successor (docs/design/architecture.md, decision 40).
docs: export NO_MKDOCS_2_WARNING := 1
docs: $(READY)
	@$(BIN)/mkdocs build --strict --quiet

docs-reference: $(READY)
	@$(BIN)/python docs/generate.py

check: lint types test

lint: $(READY)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/shellcheck launch/*.sh launch/*/*.sh .ci/*

types: $(READY)
	@$(BIN)/mypy

format: $(READY)
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --select I --fix .

# One file for every Python and system that pyproject.toml allows: uv writes which line is for whom.
requirements: $(READY)
	@$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --extra dev \
		--no-header --no-annotate pyproject.toml --output-file requirements/ci.unheaded
	@{ sed -n '/^#/p' requirements/ci.txt; cat requirements/ci.unheaded; } > requirements/ci.new
	@mv requirements/ci.new requirements/ci.txt && rm requirements/ci.unheaded
	@sed '/^libtpu==/d' requirements/ci.txt > requirements/images.constraints
	@for name in cpu gpu tpu; do \
		extra=$${name#cpu}; \
		echo setuptools | $(BIN)/uv pip compile --quiet --generate-hashes --python-version 3.12 \
			--python-platform x86_64-manylinux_2_31 --extra gcs $${extra:+--extra $$extra} \
			--constraint requirements/images.constraints --no-header --no-annotate \
			pyproject.toml - --output-file requirements/$$name.unheaded || exit 1; \
	done
	@echo uv | $(BIN)/uv pip compile --quiet --generate-hashes --python-version 3.10 \
		--constraint requirements/ci.txt --no-header --no-annotate - --output-file requirements/uv.unheaded
	@for name in cpu gpu tpu uv; do \
		{ sed -n '/^#/p' requirements/$$name.txt; cat requirements/$$name.unheaded; } > requirements/$$name.new && \
		mv requirements/$$name.new requirements/$$name.txt && rm requirements/$$name.unheaded || exit 1; \
	done
	@rm requirements/images.constraints

clean:
	@rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
	@find bert_jax data_pipeline configs tests -name __pycache__ -type d -prune -exec rm -rf {} +
