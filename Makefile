# make run: set up what is missing, then the demo. make test: the same set-up, then the tests of every day.
# make test-pools: real pools, whose nodes are killed. make test-all: all tests, for a night.
# make test-slurm: tests on a real Slurm that they start on this machine (as root, from Debian's packages). They mostly wait
# for it, so two files run at a time.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
FRAMEWORKS := $(VENV)/.ready-frameworks
# A CPU build of this release is enough for the demo and the tests; if there is none, pip picks a build itself.
TORCH  ?= torch==2.13.0

# Shows its progress on a terminal.
PIP = PYTHONWARNINGS="ignore:Editable installation" $(BIN)/python -m pip install $(shell test -t 2 || echo --quiet)

# Many ranks share a machine here, so libraries that start a thread per core would compete.
export OMP_NUM_THREADS ?= 1

.PHONY: run test test-one-pool test-without-pools test-pools test-pools-1 test-pools-2 test-all test-long test-slurm test-pbs test-gpu lint tables coverage docs release bench chaos plays soak flaky mutants fuzz clean
run: $(READY)
	$(BIN)/pilot demo

# Tests with pools or rank processes, in two parts. They mostly wait, and search the whole machine for leftovers.
POOLS_1 := tests/integration tests/ported tests/ddp tests/chaos tests/equivalence/test_node_fabrics.py \
	tests/equivalence/test_real_ranks.py tests/seldom tests/between
POOLS_2 := tests/e2e tests/soak
EVERY_DAY := -q -m "not long"
test: $(READY)
	$(MAKE) -k test-one-pool test-without-pools

test-one-pool: $(READY)
	$(BIN)/python -m pytest $(EVERY_DAY) tests/e2e/test_first.py

test-without-pools: $(READY)
	$(BIN)/python -m pytest $(EVERY_DAY) -n 2 $(addprefix --ignore=,$(POOLS_1) $(POOLS_2) tests/slurm tests/pbs)

test-pools: $(READY)
	$(MAKE) -k -j 2 test-pools-1 test-pools-2

test-pools-1 test-pools-2: test-pools-%: $(READY)
	$(BIN)/python -m tests.isolated $(BIN)/python -m pytest $(EVERY_DAY) $(POOLS_$*)

# What the others leave out: every row of tests/equivalence, Lightning and Hugging Face's Trainer, which it installs first.
test-long: $(FRAMEWORKS)
	$(BIN)/python -m pytest -q -n 2 -m long --ignore=tests/slurm --ignore=tests/pbs
	$(BIN)/python -m pytest -q -m long tests/slurm

test-all: test test-pools test-slurm test-pbs test-long

test-slurm: $(READY)
	$(BIN)/python -m pytest $(EVERY_DAY) -n 2 --dist loadfile tests/slurm

# Tests on a real OpenPBS, which must be installed in /opt/pbs or PBS_EXEC; without one they are skipped with that reason.
test-pbs: $(READY)
	$(BIN)/python -m pytest -q -rs tests/pbs

# On a machine with a GPU, with a torch for it in $(VENV): what only a GPU shows, and the rows of tests/equivalence on it.
test-gpu: $(READY)
	$(BIN)/python -c "import torch; torch.ones(1, device='cuda')"
	$(BIN)/python -m pytest -q -m gpu
	EQUIVALENCE_DEVICE=cuda $(BIN)/python -m pytest -q -n 4 tests/equivalence/test_rows.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Which share of each room the tests of `make test` run, without those in pools.
coverage: $(READY)
	$(BIN)/python -m pytest $(EVERY_DAY) -n 2 $(addprefix --ignore=,$(POOLS_1) $(POOLS_2) tests/slurm tests/pbs) \
		--cov=pilot --cov-report=json:out/coverage.json
	$(BIN)/python -m tests.coverage out/coverage.json

# The generated parts of the documents; a test fails if they are stale.
tables: $(READY)
	$(BIN)/python -m tests.architecture
	$(BIN)/python -m tests.json_reference
	$(BIN)/python -m tests.equivalence.table
	$(BIN)/python -m tests.ported.pairs

# The documentation site, in out/docs/docs/index.html; needs no network.
docs: $(READY)
	$(BIN)/python -m sphinx -q -W --keep-going -b html -c docs . out/docs

# Build this version in dist/, and try its wheel on each Python that is here, or on those of PYTHONS. Tags and uploads nothing.
release: $(READY)
	TORCH="$(TORCH)" PYTHONS="$(PYTHONS)" $(BIN)/python .ci/release.py

# All hostile inputs of tests/security/fuzz, and a table of their outcomes; ONLY=checkpoints tries only those.
fuzz: $(READY)
	$(BIN)/python -m tests.security.fuzz --seed $(or $(SEED),1) --only "$(ONLY)"

chaos: $(READY)
	$(BIN)/python -m tests.chaos --seed $(or $(SEED),1) --minutes $(or $(MINUTES),10)

# Seeded plays of the data plane: nodes with networks of their own die in each phase.
plays: $(READY)
	$(BIN)/python -m tests.between.plays --seeds $(or $(SEEDS),0:200) --between $(or $(BETWEEN),gloo) --jobs 2

# How often each test with a real pool fails, alone and beside a busy process on each core.
flaky: $(READY)
	$(BIN)/python -m tests.flaky --times $(or $(TIMES),10)

# Hours of a pool in a mild storm, to see what grows. The plot is in out/soak.
soak: $(READY)
	$(BIN)/python -m tests.soak --seed $(or $(SEED),1) --hours $(or $(HOURS),2)

# 300 small mistakes in the deciding code, drawn from SEED: a test must fail for each.
mutants: $(READY)
	$(BIN)/python -m tests.mutants --count $(or $(MUTANTS),300) --seed $(or $(SEED),1) --minutes $(or $(MINUTES),90)

bench: $(READY)
	$(BIN)/python -m benchmarks

$(READY): setup.cfg pyproject.toml
	@echo "creating $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --upgrade pip
	@$(BIN)/python -c "import torch" 2>/dev/null || { echo "installing $(TORCH) ..."; $(PIP) "$(TORCH)"; } \
		|| echo "$(TORCH) is not available here; the next step installs another version"
	@echo "installing pilot and its dependencies ..."
	@$(PIP) -e ".[dev]"
	@touch $(READY)

$(FRAMEWORKS): $(READY)
	@echo "installing Lightning and Hugging Face's Trainer ..."
	@$(PIP) -e ".[frameworks]"
	@touch $(FRAMEWORKS)

clean:
	rm -rf $(VENV) out build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
