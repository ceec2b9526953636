.DEFAULT_GOAL := help
.PHONY: help setup demo demo-stop check lint format test test-e2e test-long nightly test-package test-versions test-cluster test-model test-mutants test-faults test-stateful test-crash \
	test-crash-ingest test-fuzz test-fuzz-poll test-fuzz-feed test-fuzz-secrets .azurite .chromium .mariadb \
	bench-upload bench-uploads bench-import bench-wait bench-cluster bench-ingest bench-query bench-page bench-row sandbox constraints docs clean

PYTHON ?= python3
BIN := .venv/bin
# Waits for a lock that another program holds.
APT := apt-get -o DPkg::Lock::Timeout=120
# Airflow is many processes, and tests start many more: without Python's cache, each compiles what it imports.
unexport PYTHONDONTWRITEBYTECODE
# The modules of tests/ import one another from there.
RUN := PYTHONPATH=tests $(BIN)/python
# The same with the Airflow of AIRFLOW=3.1.8, where it is given.
RUN_WITH := $(if $(AIRFLOW),python=$$($(RUN) -m versions.environments $(AIRFLOW)) && PYTHONPATH=tests $$python,$(RUN))
PIN := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --upgrade --no-header --no-annotate \
	--no-emit-index-url --no-emit-find-links
# What tests use of the package. MySQL's driver is built with its server (.mariadb).
EXTRAS := sandbox,sqlite,postgres,duckdb,iceberg,parquet,xlsx,s3,azure,sftp,slack,smtp,openlineage,celery
INSTALL := $(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt \
	--build-constraint constraints.txt --editable '.[$(EXTRAS)]'
# WORKERS: processes that run tests. What they start shares the machine's cores with them; some only wait.
# SEED: of what is chosen by chance. Without one, a test chooses the same at each run.
PYTEST := $(BIN)/python -m pytest $(if $(SEED),--hypothesis-profile=chance --hypothesis-seed=$(SEED))
COVERED := $(if $(COVERAGE),--cov --cov-report=term --cov-report=json:build/coverage.json)
SEEDED := $(if $(SEED),--seed $(SEED))
# `make nightly` runs the tests of a change with another seed, and everything that takes too long for a change; the longest first.
NIGHTLY := test-long test-model test-crash-ingest test-package test-e2e test-faults test-versions test-stateful test test-crash test-mutants test-cluster \
	test-fuzz-poll test-fuzz-feed test-fuzz-secrets test-fuzz check

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/.complete ## Make .venv with everything in it (the targets below call it)

.venv/.complete: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or later is needed, this is " + sys.version; import ensurepip'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	$(INSTALL) --group dev
	touch $@

demo: setup ## Deliver real files with a real Airflow, from disk to warehouse (KEEP=1 leaves it running, AIRFLOW=3.1.8)
	$(RUN_WITH) scripts/demo.py $(if $(KEEP),--keep)

demo-stop: setup ## Stop what `make demo KEEP=1` left running
	$(RUN) scripts/demo.py --stop

test: setup .mariadb ## Run all tests but those of `make test-e2e` and `make test-long` (about 2 minutes on two cores; COVERAGE=1)
	$(PYTEST) -n $(or $(WORKERS),4) --dist worksteal -m "not e2e and not slow and not nightly" $(COVERED) $(ARGS)

test-e2e: setup .chromium .mariadb ## Run shipped Dags, the page in a browser, the search for secrets, single faults
	$(PYTEST) -n $(or $(WORKERS),2) --dist loadfile -m "(e2e or slow) and not nightly" $(ARGS)

test-long: setup .azurite .chromium .mariadb .prometheus ## Run the tests that only `make nightly` runs: kills, fuzzers, more Dag runs and drivers, dbt, …
	$(PYTEST) -n $(or $(WORKERS),2) --dist loadfile --timeout 3600 -m "nightly" $(ARGS)

nightly: setup .azurite .chromium .mariadb .prometheus ## Run everything for hours with the day's SEED, and go on after a stop: build/nightly has a log for each commit (NIGHTLY="test-faults" for a part)
	$(RUN) scripts/nightly.py $(or $(SEED),$$(date -u +%Y%m%d)) $(NIGHTLY)

test-package: setup .azurite .mariadb ## Build wheel and source archive, test them on Python 3.11 and 3.13 and with each extra alone, the unit tests also with the lowest versions (about 20 minutes; ARGS=--extra=duckdb)
	$(RUN) tests/packaging/run.py $(ARGS)

test-versions: setup ## Test with each supported Airflow, or with VERSIONS="3.1.8 3.4" (about 30 minutes; with a SEED, one version; ARGS=--short: 5)
	$(RUN) -m versions $(SEEDED) $(ARGS) $(VERSIONS)

.azurite: setup # For the tests of Azure: a server of blobs, which npm has
	@test -e .venv/azurite/node_modules/azurite || { \
		echo "The tests of Azure need Azurite, and there is none: it is installed." >&2; \
		AS_ROOT=$$(test "$$(id -u)" = 0 || echo sudo); \
		command -v npm >/dev/null || { $$AS_ROOT $(APT) update -qq && \
			$$AS_ROOT $(APT) install -qq --yes --no-install-recommends npm >/dev/null; } && \
		npm install --silent --no-audit --no-fund --no-save --prefix .venv/azurite azurite@3.37.0; }

.prometheus: setup # For the tests of the alerts: the programs of Debian's package, unpacked, so that no service starts
	@test -x .venv/prometheus/usr/bin/promtool || { \
		echo "The tests of the alerts need Prometheus, and there is none: its package is unpacked." >&2; \
		AS_ROOT=$$(test "$$(id -u)" = 0 || echo sudo); \
		mkdir -p .venv/prometheus && $$AS_ROOT $(APT) update -qq && cd .venv/prometheus && \
		$(APT) download -qq prometheus 2>/dev/null && dpkg-deb -x prometheus_*.deb . && rm prometheus_*.deb; }

.chromium: # For the browser tests
	@command -v chromium >/dev/null || { \
		echo "The browser tests need Chromium, and there is none: it is installed from Debian's packages." >&2; \
		AS_ROOT=$$(test "$$(id -u)" = 0 || echo sudo); \
		$$AS_ROOT $(APT) update -qq && $$AS_ROOT $(APT) install -qq --yes --no-install-recommends chromium >/dev/null; }

.mariadb: setup # For the tests on MariaDB: a server's binaries, no service; and the drivers, of which one is compiled
	@test -x /usr/sbin/mariadbd && $(BIN)/python -c "import MySQLdb" 2>/dev/null || { \
		echo "The tests on MariaDB need its server and driver: they are installed." >&2; \
		AS_ROOT=$$(test "$$(id -u)" = 0 || echo sudo); \
		HEADERS=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_paths()["include"])'); \
		$$AS_ROOT $(APT) update -qq && $$AS_ROOT $(APT) install -qq --yes --no-install-recommends mariadb-server-core \
			libmariadb-dev gcc libc6-dev pkg-config $$(test -e $$HEADERS/Python.h || echo python3-dev) >/dev/null && \
		$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt \
			--build-constraint constraints.txt --editable '.[mysql]'; }

test-model: setup ## Run all delivery schedules on the production code, and again with each rule removed (about an hour; with a SEED, a third of the rules)
	$(RUN) -m model $(SEEDED) $(ARGS)

test-mutants: setup ## Mutate the provider's code, one change at a time, and run the tests that cover it (hours; with a SEED, 40 of 7,000; ARGS="--only delivery.row")
	$(BIN)/python scripts/mutate.py $(if $(SEED),--sample 40 --seed $(SEED)) $(ARGS)

test-faults: setup ## Run a delivery under every fault, every pair of faults, faults of parallel uploads, and a failing database (about 40 minutes; with a SEED, a sample)
	$(RUN) -m resilience.fault_matrix $(if $(SEED),--sample 5000 --seed $(SEED)) $(ARGS)

test-stateful: setup ## Run 2,000 random schedules of tasks, faults, kills and clears against the sandbox (about 10 minutes)
	$(RUN) -m resilience.stateful $(SEEDED) $(ARGS)

test-crash: setup ## Kill a delivery's processes at every moment, in a real Airflow (about 6 minutes; AIRFLOW=3.1.8)
	$(RUN_WITH) -m resilience.crash $(ARGS)

test-crash-ingest: setup .mariadb ## Kill an ingest, an erasure and a reset at every step, on each warehouse and an Iceberg table (about 30 minutes)
	$(RUN) -m resilience.crash_ingest $(ARGS)

test-cluster: setup ## Run docker-compose.yaml natively; lose a worker and a triggerer (about 6 minutes)
	$(RUN) -m e2e.cluster $(ARGS)

test-fuzz-poll: setup ## Run the real poll against a hostile service, for SECONDS (default: 300)
	$(RUN) -m resilience.fuzz.poll_fuzz --seconds $(or $(SECONDS),300) $(SEEDED) $(ARGS)

test-fuzz-feed: setup .mariadb ## Run the real ingestion against a hostile feed, on each warehouse, for SECONDS (default: 300)
	$(RUN) -m resilience.fuzz.feed_fuzz --seconds $(or $(SECONDS),300) $(SEEDED) $(ARGS)

test-fuzz-secrets: setup ## Run against servers that echo secrets in any form, for SECONDS (default: 300)
	$(RUN) -m resilience.fuzz.secret_fuzz --seconds $(or $(SECONDS),300) $(SEEDED) $(ARGS)

test-fuzz: setup ## Run schemathesis on every API endpoint, for SECONDS (default: 300)
	FUZZ_SECONDS=$(or $(SECONDS),300) FUZZ_SEED=$(SEED) $(BIN)/python -m pytest -q tests/sandbox/contract/test_fuzz.py

check: lint ## Check style and types, run the unit tests and the model's short form: run it while you work
	$(PYTEST) -q -n $(or $(WORKERS),2) -m "not slow" tests/unit tests/model $(ARGS)

format: setup ## Put the code into its form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lint: setup ## Check style, types and imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench-upload: setup ## Upload 1 GiB: speed beside curl's, and memory
	$(RUN) -m benchmarks.bench_upload

bench-uploads: setup ## 20 files of 50 MB one and several at once, over a simulated line and loopback (about 2 minutes)
	$(RUN) -m benchmarks.bench_uploads

bench-ingest: setup ## One million events into each warehouse, beside dlt: speed, CPU, memory (about 15 minutes)
	$(RUN) -m benchmarks.bench_ingest $(ARGS)

bench-query: setup ## Ten million rows of a query into each format, beside pandas: speed, memory (about an hour; ARGS=--rows=1000000)
	$(RUN) -m benchmarks.bench_query $(ARGS)

bench-import: setup ## What importing the operators adds to importing Airflow
	$(RUN) -m benchmarks.bench_import

bench-wait: setup ## A thousand deferred waits in a real Airflow, beside HttpSensor (about half an hour; AIRFLOW=3.1.8)
	$(RUN_WITH) -m benchmarks.bench_wait $(ARGS)

bench-cluster: setup ## Senders beside thousands of waits that share a key's real allowance (about 25 minutes)
	$(RUN) -m benchmarks.bench_cluster $(ARGS)

bench-page: setup ## The page of deliveries with 100,000 of them, in each warehouse (about 8 minutes)
	$(RUN) -m benchmarks.bench_page $(ARGS)

bench-row: setup .mariadb ## The row of a delivery with 1,000 and 10,000 files: bytes, and the time of a save in each database
	$(RUN) -m benchmarks.bench_row $(ARGS)

sandbox: setup ## Run the sandbox on port 8085, its state in .sandbox
	$(BIN)/outbound-transfer-sandbox --data .sandbox

constraints: setup ## Pin the newest versions of everything that set-up installs
	$(PIN) --all-extras --group dev --group docs --output-file constraints.txt pyproject.toml
	$(PIN) --output-file constraints/dbt.txt constraints/dbt.in

docs: setup ## Build the documentation's site in site/; a warning is an error
	$(INSTALL) --group docs
	$(RUN) scripts/dbt_site.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean: ## Remove what the targets above made
	rm -rf .venv .venvs .demo .sandbox .airflow site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .coverage .hypothesis dist build
