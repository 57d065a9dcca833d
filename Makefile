# People and CI run the same commands. Nothing has to be installed but Python 3.11 or later: every
# target that needs tools first makes its own .venv, again when pyproject.toml has changed.
#
#   make            what there is
#   make test       all that CI runs
#   make model RUNS=200 STEPS=50     any count can be given

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
CHROMIUM := $(VENV)/.chromium
PY     := $(BIN)/python
FAST   := $(VENV)/fast/.ready
BENCH_PY ?= $(VENV)/fast/bin/python

# The figures of a full run, which `make long` takes; `make test` has short slices of the same checks.
RUNS    ?= 20000
STEPS   ?= 100
SEEDS   ?= 5000
HOURS   ?= 1
OUTAGE_HOURS ?= 24
OUTAGE_SEEDS ?= 4
ATTACK_S ?= 60
IMAGES  ?= 100000
FLIPS   ?= 2000
CYCLES  ?= 500
FAILURES ?= 20
LARGEST ?= 100
CASES   ?= 100000
READS   ?= 20000
FRAMES  ?= 5000000
LIVE    ?= 200000
TRIES   ?= 1000000
OUTAGES ?= 200
PREEMPTIONS ?= 1000
ORDERS  ?= 10000
KILLS   ?= 100
HONEST  ?= 10
FAULTS  ?= 1000
CAPTURED ?= 1000000
DRIVERS ?= 20
EXECUTORS ?= 50
BROKERS ?= 10
WORKERS ?= 2
MINUTES ?= 10
BEFORE  ?=
LANES   ?= 2
ARGS    ?=

export PYTHONPATH := $(CURDIR)
.DEFAULT_GOAL := help
.PHONY: $(shell awk -F ':.*## ' '/^[a-z-]+:.*## / { print $$1 }' $(firstword $(MAKEFILE_LIST)))

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-20s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(READY) ## The whole of it in two minutes: two brokers, priorities, an outage, Spark's report; ARGS=--keep leaves them running
	@$(PY) examples/demo/demo.py $(ARGS)

tour: $(READY) ## The broker without a network, step by step: send, lock, dead-letter, schedule, kill -9, recover
	@$(PY) -m tandembus.tour

test: MINUTES = 4
test: check $(CHROMIUM) ## All that CI runs: the checks, every test but the long ones, MINUTES of search; as root on Debian it installs chromium
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup -q -m "not long" --hypothesis-seed=0 $(ARGS)
	$(PY) -m tools.search --minutes $(MINUTES)

search: $(READY) ## MINUTES of slices of ten harnesses, with seeds derived from the commit
	$(PY) -m tools.search --minutes $(MINUTES) $(ARGS)

long: $(READY) $(CHROMIUM) ## Every long harness with its full count, LANES side by side, and one table: 3 hours; goes on where it was ended
	$(PY) -m tools.long --lanes $(LANES) $(ARGS)

test-long: $(READY) ## The tests that are too long for `test` and belong to no other target
	$(BIN)/pytest -q -m long --ignore tests/spark --ignore tests/browser \
		--ignore tests/house/test_pages.py --ignore tests/crash/test_failover.py \
		--ignore tests/hostile/test_timing.py $(ARGS)

properties: $(READY) ## The property tests, with a seed that hypothesis draws (ARGS=--hypothesis-seed=N); `make test` has seed 0
	$(BIN)/pytest -n $(WORKERS) -q -m "hypothesis and not long" $(ARGS)

test-pythons: $(READY) ## The fast tests on each Python that is installed, 3.11 to 3.14 (ARGS="--only 3.12")
	@$(PY) tools/pythons.py --workers $(WORKERS) $(ARGS)

check: $(READY) ## Style, types and the layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict
	$(BIN)/lint-imports --no-logo

format: $(READY) ## Put the source in the form that `check` wants
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

requirements: $(READY) ## Which requirements are proven, by which tests; which findings have tests
	@$(PY) tools/requirements.py $(ARGS)

model: $(READY) ## The core against a small model: RUNS × STEPS
	$(PY) -m tests.property.test_model --runs $(RUNS) --steps $(STEPS) $(ARGS)

simulate: $(READY) ## The engine under a fake clock and a faulty disk: SEEDS × HOURS
	$(PY) -m tests.simulation.run --seeds $(SEEDS) --hours $(HOURS) $(ARGS)

powercut: $(READY) ## Power cuts at every write (IMAGES) and flipped bits (FLIPS)
	$(PY) -m tests.crash.powercut --images $(IMAGES) --flips $(FLIPS) $(ARGS)

kill: $(READY) ## SIGKILL of a loaded process: CYCLES times
	$(PY) -m tests.crash.kill --cycles $(CYCLES) $(ARGS)

test-postgres: $(READY) ## Brokers on one PostgreSQL: every test, then the one that serves fails FAILURES times in each way; 5 minutes
	$(BIN)/pytest -q tests/unit/store/test_contract.py tests/unit/store/test_postgres.py tests/crash/test_failover.py
	$(PY) -m tests.crash.failover --count $(FAILURES) $(ARGS)

bench-postgres: $(READY) ## Messages/s with the log in PostgreSQL, beside the log in files on the same disk
	$(PY) -m bench.postgres $(ARGS)

bench: $(READY) $(FAST) ## Tandem, as tandembus[fast] on the system's Python, beside its peers under the same durable load: 15 minutes, Debian, root (BENCH_PY=.venv/bin/python: without uvloop, on PYTHON; BEFORE=COMMIT ARGS="--peers before": beside an earlier commit)
	BEFORE=$(BEFORE) PYTHON=$(abspath $(BENCH_PY)) bench/run $(ARGS)

bench-core: $(READY) ## What core and engine cost, without a network: CPU, memory, time to recover
	$(PY) -m bench.core $(ARGS)

bench-client: $(READY) ## What the lean client costs: CPU a message
	$(PY) -m tests.client.cost $(ARGS)

bench-testing: $(READY) ## What a namespace for each test costs, in seconds a test
	$(PY) -m tests.testing.bench $(ARGS)

bench-overlap: $(READY) ## 100 sends at a time over a 70 ms line, and one by one (T2)
	$(PY) -m tests.client.overlap $(ARGS)

sql: $(READY) ## SQL filters against a reference evaluator (CASES), and their worst cases
	$(PY) -m tests.property.test_sql_agrees --cases $(CASES) $(ARGS)
	$(PY) -m tests.property.sql_linear

frames: $(READY) ## Frames in one read against one at a time, random traffic with transactions: READS
	$(PY) -m tests.property.test_frames_in_order --reads $(READS) $(ARGS)

fuzz: $(READY) ## Hostile bytes: FRAMES on the decoder, LIVE on connections, HTTP, names, canaries
	$(PY) -m tests.fuzz.run --frames $(FRAMES) --live $(LIVE) --workers $(WORKERS) $(ARGS)

hostile: $(READY) ## Hostile clients beside one that behaves: its p99, and the broker's memory, ATTACK_S for each attack; 35 minutes
	$(PY) -m tests.hostile.run --seconds $(ATTACK_S) $(ARGS)

connections: $(READY) ## 5,000 idle connections, then 1,000 inside TLS; one with 10,000 links, with 50,000 unsettled: memory and CPU
	$(PY) -m tests.hostile.connections $(ARGS)
	$(PY) -m tests.hostile.crowded

timing: $(READY) ## Whether the time of a refusal tells anything about a key: TRIES of each pair
	$(BIN)/pytest -q -m long tests/hostile/test_timing.py
	$(PY) -m tests.hostile.timing --count $(TRIES) $(ARGS)

outage: $(READY) ## A pair of servers through OUTAGES outages, the syphon killed KILLS times
	$(PY) -m tests.pairing.outage --count $(OUTAGES) --kills $(KILLS) $(ARGS)

outage-hours: $(READY) ## Random outages of a pair, in virtual time: OUTAGE_SEEDS × OUTAGE_HOURS
	$(PY) -m tests.pairing.hours --hours $(OUTAGE_HOURS) --seeds $(OUTAGE_SEEDS) $(ARGS)

bench-pairing: $(READY) ## What a pair costs while healthy, its return, its drain
	$(PY) -m bench.pairing $(ARGS)

priority-order: $(READY) ## Each receive gets the highest level: ORDERS runs of any arrivals, aging, weights and clock
	$(PY) -m tests.property.test_priority_order --runs $(ORDERS) $(ARGS)

starvation: $(READY) ## A day of too much high work, in virtual time: how long low work waits, and its bound
	$(PY) -m tests.property.test_priority_bound $(ARGS)

bench-priority: $(READY) ## A priority queue beside a plain one, a million waiting in each: messages/s
	$(PY) -m bench.priority_queue $(ARGS)

preemption: $(READY) ## How soon high work begins on a pool busy with low work: PREEMPTIONS times
	$(PY) -m tests.workers.preempt --count $(PREEMPTIONS) $(ARGS)

simulate-agrees: $(READY) ## The simulator of priorities beside real workers: mean waits within 15 %; 3 minutes
	$(PY) -m tests.workers.agree $(ARGS)

autoscale: $(READY) ## A pool that follows a load step of ten times on a real broker; 2 minutes
	$(PY) -m tests.workers.autoscale $(ARGS)

bench-priority-peers: $(READY) ## A priority queue beside RabbitMQ's: speed, and low work under overload; Debian, root
	$(PY) -m bench.priority_peers $(ARGS)

bench-spark: $(READY) ## Spark reading and writing a queue, beside the lean client and the official SDK
	$(PY) -m bench.spark_source $(ARGS)

bench-journal: $(READY) ## What the journal costs: events/s into Parquet, and the broker's speed beside it (ARGS="--events 1000000 --events 10000000")
	$(PY) -m bench.journal $(ARGS)

audit-faults: $(READY) ## The audit: HONEST runs with kills have no offender, each of FAULTS planted faults is found
	$(PY) -m tests.journal.faults --runs $(HONEST) --faults $(FAULTS) $(ARGS)

test-spark: $(READY) $(CHROMIUM) ## Every test of Spark, the long ones too: the report, its page in a browser
	$(BIN)/pytest -q tests/spark tests/unit/spark $(ARGS)

test-cluster: $(READY) ## Capture, syphon and report on a standalone Spark cluster: a master, two workers
	$(BIN)/pytest -q -m long tests/spark/test_cluster.py $(ARGS)

bench-report: $(READY) ## What `tandem report` takes: events/s, memory (ARGS="--events 1000000 10000000")
	$(PY) -m bench.report $(ARGS)

bench-spark-syphon: $(READY) ## The syphon on Spark beside the plain one, and killed (ARGS="--killed 1000000 --kills 20")
	$(PY) -m bench.spark_syphon $(ARGS)

spark-exactness: $(READY) ## CAPTURED messages on a cluster of Spark through kills of DRIVERS, EXECUTORS and BROKERS: none lost, none twice (ARGS=--local: no cluster)
	$(PY) -m tests.spark.exactness --count $(CAPTURED) --drivers $(DRIVERS) --executors $(EXECUTORS) --brokers $(BROKERS) $(ARGS)

test-docs: $(READY) ## Every command and program of the README and of docs/, run as it stands there
	$(BIN)/pytest -q tests/house/test_docs.py tests/house/test_pages.py \
		`$(PY) -m tests.house.pages tests` $(ARGS)

bench-start: $(READY) ## How soon `tandem serve` is ready, and its memory at rest
	$(PY) -m bench.start $(ARGS)

sdk-suite: $(READY) ## The official SDK's own live tests, plain and TLS: about 12 minutes
	$(PY) -m tests.conformance.azure.sdk_suite $(ARGS)

sdk-samples: $(READY) ## The SDK's own samples, unmodified; downloads them
	$(PY) -m tests.interop.samples $(ARGS)

test-js: $(READY) ## The SDK for JavaScript (@azure/service-bus); installs it from npm
	$(PY) -m tests.interop.nodejs $(ARGS)

ladder: $(READY) ## Messages of 256 KB to LARGEST MB × plain, TLS, WebSocket × the SDKs, the lean client, the CLI × every way to receive, and the broker's memory (ARGS="--only python/tls/4MB")
	$(PY) -m tests.interop.ladder --largest $(LARGEST) $(ARGS)

test-interop: $(READY) ## Plain AMQP clients, Qpid Proton and rhea; builds and installs them
	$(PY) -m tests.interop.plain_amqp $(ARGS)

test-browser: $(READY) $(CHROMIUM) ## The console in a real browser, every page in both themes; SCREENSHOTS=folder keeps pictures
	$(BIN)/pytest -q tests/browser $(ARGS)

bench-console: $(READY) $(CHROMIUM) ## The console with much to show (--queues 10000 --messages 1000000), and what it costs the broker
	$(PY) -m bench.console $(ARGS)

# Debian's browser: what Playwright would download is not needed. Without it the tests of the console are skipped.
$(CHROMIUM): | $(READY)
	@mkdir -p $(@D)
	@command -v chromium >/dev/null || { echo "installing chromium …"; \
		{ apt-get install -y -q chromium || { apt-get update -q && apt-get install -y -q chromium; }; } >$@.log 2>&1 \
		|| echo "chromium is missing, and cannot be installed here: apt install chromium (as root)" >&2; }
	@! command -v chromium >/dev/null || touch $@

docs: $(READY) ## The documentation as a site, in build/site; every link checked
	$(PY) tools/site.py && echo "build/site/index.html"

clean: ## Remove .venv and every cache
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis \
		.coverage .coverage.* build dist tests/interop/js/node_modules
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# As `pip install 'tandembus[fast]'` gives it, where there is an uvloop for this platform; on the Python
# of the system, if it is new enough. The peers come from there, too, and such a one is built with
# its own optimisations, as those of the images are; one of pyenv's takes 1.4 times as long.
$(FAST): $(READY)
	@echo "preparing $(@D) …"
	@/usr/bin/python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
		&& /usr/bin/python3 -m venv --clear --without-pip $(@D) \
		|| $(PYTHON) -m venv --clear --without-pip $(@D)
	@$(PY) -m pip --quiet --disable-pip-version-check --python $(@D)/bin/python install -e '.[fast]' \
		|| $(PY) -m pip --quiet --disable-pip-version-check --python $(@D)/bin/python install -e .
	@touch $@

# uv only makes the installation faster; without it, plain pip does the same.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Tandem needs Python 3.11 or later, and '$(PYTHON)' is `$(PYTHON) --version 2>&1 || true`." >&2; \
		echo "Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "'$(PYTHON)' cannot make a venv (on Debian: apt install python3-venv)." >&2; exit 1; }
	@echo "preparing $(VENV) …"
	@$(PYTHON) -m venv --clear $(VENV)
	@{ $(PY) -m pip install --quiet --disable-pip-version-check uv \
		&& $(BIN)/uv pip install --quiet --python $(PY) -e '.[dev]'; } 2>$(VENV)/uv.log \
		|| { echo "uv cannot install here ($(VENV)/uv.log says why); pip does, more slowly …"; \
			$(PY) -m pip install --quiet --disable-pip-version-check -e '.[dev]'; }
	@touch $@
