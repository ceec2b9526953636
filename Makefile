.DEFAULT_GOAL := help
.PHONY: help setup demo demo-stop test test-whole test-package test-cluster chromium views faults machine kills kills-ingest \
	fuzz fuzz-poll fuzz-feed fuzz-secrets lint \
	bench-upload bench-ledger bench-import bench-wait bench-ingest bench-sandbox bench-page sandbox constraints clean

PYTHON ?= python3
BIN := .venv/bin
# The tests that start a real Airflow or a real PostgreSQL share the machine's cores with it.
WORKERS ?= 2

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/.complete ## Make .venv with everything in it (the targets below call it)

.venv/.complete: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert (3, 10) <= sys.version_info[:2] < (3, 14), "Python 3.10 to 3.13 is needed, this is " + sys.version; import ensurepip'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt \
		--build-constraint constraints.txt --editable '.[dev]'
	touch $@

demo: setup ## Deliver real files with a real Airflow, from disk to warehouse (KEEP=1 leaves it running)
	$(BIN)/python scripts/demo.py $(if $(KEEP),--keep)

demo-stop: setup ## Stop what `make demo KEEP=1` left running
	$(BIN)/python scripts/demo.py --stop

test: setup chromium ## Run the tests, all but the longest
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not whole" $(ARGS)

test-whole: setup chromium ## Run the longest tests: whole Airflows, in a browser, killed, searched for secrets
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m whole $(ARGS)

test-package: setup ## Build wheel and source archive, install and test them on Python 3.10 and 3.13 (about 6 minutes)
	$(BIN)/python tests/package/run.py $(ARGS)

chromium: # For the browser tests
	@command -v chromium >/dev/null || { \
		echo "The browser tests need Chromium, and there is none: it is installed from Debian's packages." >&2; \
		AS_ROOT=$$(test "$$(id -u)" = 0 || echo sudo); \
		$$AS_ROOT apt-get update -qq && $$AS_ROOT apt-get install -qq --yes --no-install-recommends chromium >/dev/null; }

faults: setup ## A delivery under every fault, every pair, troubles of its state store, failing listings (about 15 minutes)
	$(BIN)/python tests/faults/run.py $(ARGS)

machine: setup ## 2,000 random schedules of tasks, faults, deaths and clears against the ledger (about 7 minutes)
	$(BIN)/python tests/faults/run_machine.py $(ARGS)

kills: setup ## A delivery whose processes are killed at every moment, in a real Airflow (about 6 minutes)
	$(BIN)/python tests/kills/run.py $(ARGS)

test-cluster: setup ## docker-compose.yaml run natively, a worker and a triggerer lost (about 6 minutes)
	$(BIN)/python tests/cluster/run.py $(ARGS)

fuzz-poll: setup ## The real poll against a hostile service, for SECONDS (600 where not given)
	$(BIN)/python tests/faults/poll_fuzz.py --seconds $(or $(SECONDS),600) $(ARGS)

fuzz-feed: setup ## The real ingestion against a hostile feed, on each warehouse, for SECONDS (600 where not given)
	$(BIN)/python tests/faults/feed_fuzz.py --seconds $(or $(SECONDS),600) $(ARGS)

fuzz-secrets: setup ## Peers that quote secrets in any form, for SECONDS (600 where not given)
	$(BIN)/python tests/faults/secret_fuzz.py --seconds $(or $(SECONDS),600) $(ARGS)

fuzz: setup ## The API's every endpoint under schemathesis, for SECONDS (300 where not given)
	FUZZ_SECONDS=$(or $(SECONDS),300) $(BIN)/python -m pytest -q tests/contract/test_fuzz.py

lint: setup ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

views: setup ## Draw what the analysts' views say, for the documentation
	$(BIN)/python scripts/draw_views.py

bench-upload: setup ## Upload 1 GiB: speed beside curl's and with a digest, and memory
	$(BIN)/python tests/benchmarks/bench_upload.py

bench-ledger: setup ## What the ledger adds to a delivery of three small files
	$(BIN)/python tests/benchmarks/bench_ledger.py $(ARGS)

bench-ingest: setup ## One million events into each warehouse, beside dlt: speed, CPU, memory (about 10 minutes)
	$(BIN)/python tests/benchmarks/bench_ingest.py $(ARGS)

kills-ingest: setup ## Kill the ingest at every step of its SQL, on each warehouse (about 10 minutes)
	$(BIN)/python tests/kills/ingest.py $(ARGS)

bench-import: setup ## What importing the operators adds to importing Airflow
	$(BIN)/python tests/benchmarks/bench_import.py

bench-wait: setup ## A thousand deferred waits in a real Airflow, beside HttpSensor (about half an hour)
	$(BIN)/python tests/benchmarks/bench_wait.py $(ARGS)

bench-page: setup ## The page of deliveries with 100,000 of them, in each warehouse (about 8 minutes)
	$(BIN)/python tests/benchmarks/bench_page.py $(ARGS)

bench-sandbox: setup ## The sandbox: start, calls a second, upload, pages of long lists, beside peers
	$(BIN)/python tests/benchmarks/bench_sandbox.py $(ARGS)

sandbox: setup ## Run the sandbox on port 8085, its state in .sandbox
	$(BIN)/outbound-transfer-sandbox --data .sandbox

constraints: setup ## Pin the newest versions of everything that set-up installs
	$(BIN)/uv pip compile --quiet --universal --python-version 3.10 --all-extras --upgrade --no-header --no-annotate \
		--no-emit-index-url --no-emit-find-links --output-file constraints.txt pyproject.toml

clean: ## Remove what the targets above made
	rm -rf .venv .demo .sandbox .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build
