# Everything a developer or CI runs. `make help` lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
ARGS ?=
SECONDS ?= 60
ROUNDS ?= 200
SEEDS ?= 300
SCHEDULES ?= 100
RUNS ?= 39
MINUTES ?= 20
SEED ?= 0
PART ?= all

comma := ,

.PHONY: help demo test test-all ci nightly test-pythons compose-test kubernetes-test lake-test wheelhouse spark-zip console-pictures check fuzz hostile crash-test simulate fault-test fault-matrix fault-failovers spark-chaos soak bench figures bench-store bench-nats bench-grpc bench-spark protobuf features compatibility docs site peers dist clean

help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(VENV)/.demo: pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) is missing: install Python 3.11 or newer (Debian: apt-get install python3 python3-venv)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $(PYTHON) is older than 3.11: call make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { echo "make: the venv module is missing (Debian: apt-get install python3-venv)"; exit 1; }
	@echo "Installing into $(VENV) (PySpark is a large package: some minutes the first time) ..."
	@start=$$(date +%s); \
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV); \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[demo]' && \
	echo "Installation took $$(( $$(date +%s) - start )) s"
	@touch $@

$(VENV)/.dev: $(VENV)/.demo
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(VENV)/.demo ## set everything up and run the main job on real data (336,776 flights)
	@$(BIN)/python examples/demo $(ARGS)

test: $(VENV)/.dev ## the suite that needs nothing but this checkout, four tests side by side (6 minutes on two cores)
	$(PYTEST) -n 4 --dist worksteal -m "not compat and not slow and not spark and not hostile and not nightly and not compose" --durations=20 $(ARGS)

test-all: $(VENV)/.dev ## the whole suite: slow tests, Spark, the official Java, Go, Python and Node clients
	$(BIN)/python tests/lanes.py --only install-peers fast peers peers-more spark slow $(ARGS)

ci: $(VENV)/.dev $(VENV)/.fuzz $(VENV)/.docs ## what CI runs: all lanes, three at a time (ARGS="--only LANE", ARGS=--list)
	$(BIN)/python tests/lanes.py $(ARGS)

nightly: $(VENV)/.dev $(VENV)/.fuzz peers ## what is too long for CI, or measures: some hours on a quiet machine (ARGS="--only LANE", ARGS=--list)
	$(BIN)/python tests/lanes.py --nightly $(ARGS)

compose-test: $(VENV)/.dev ## build the image and run the compose file (root; apt-get install docker.io docker-compose iptables debootstrap)
	@mkdir -p .lanes
	$(PYTEST) -m compose -s -rs --features=.lanes/containers.features.json $(ARGS) tests/compose/test_compose.py

kubernetes-test: $(VENV)/.dev ## build an API server of Kubernetes and apply the manifests (Go; apt-get install etcd-server kubectl; half an hour the first time)
	$(BIN)/python tests/support/api_server.py
	$(PYTEST) -m compose -rs $(ARGS) tests/compose/test_api_server.py

lake-test: $(VENV)/.dev ## Delta and Iceberg tables, each with the PySpark that has a package for it (what make peers needs, and Maven Central)
	$(BIN)/python tests/compat/install_peers.py --iceberg
	@mkdir -p .lanes
	PYTHONPATH=.peers/pyspark-4.2 $(PYTEST) -q --color=no --no-skips --again --features=.lanes/delta.features.json -k delta $(ARGS) tests/compat/test_lake_formats.py
	PYTHONPATH=.peers/pyspark-4.1 $(PYTEST) -q --color=no --no-skips --again --features=.lanes/iceberg.features.json -k iceberg $(ARGS) tests/compat/test_lake_formats.py

test-pythons: $(VENV)/.dev ## half of the SDK's tests, gRPC and a cluster with Python 3.13 or 3.14, in turns (root; apt-get install debootstrap; PYTHONS="trixie sid" for both, ARGS=--full: unit tests, too)
	$(BIN)/python tests/pythons.py $(ARGS) $(PYTHONS)

wheelhouse: ## bring the wheels for an image that is built without a package index (Python of BASE = PYTHON's)
	$(PYTHON) -m pip wheel --quiet --disable-pip-version-check --wheel-dir deploy/wheelhouse '.[grpc,console$(if $(EXTRAS),$(comma)$(EXTRAS))]'

spark-zip: $(VENV)/.demo ## triomq-spark.zip: all that Spark's executors need beside pyarrow and numpy
	$(BIN)/python -m triomq.client.spark.zip_file triomq-spark.zip

console-pictures: $(VENV)/.dev ## the pictures of docs/console, from a cluster that works; ARGS="--all FOLDER" for every page in every form (needs Chromium)
	$(BIN)/python tests/console_pictures.py $(ARGS)

peers: $(VENV)/.dev ## bring the official clients and brokers (needs Java, Maven, Go and Node)
	$(BIN)/python tests/compat/install_peers.py

check: $(VENV)/.dev ## ruff, mypy --strict, the house rules, and whether generated modules are current
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	$(PYTEST) -q tests/test_tidy.py tests/unit/client/sdk/test_facades_match.py

$(VENV)/.fuzz: $(VENV)/.dev
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	@touch $@

fuzz: $(VENV)/.fuzz ## feed the decoders hostile bytes for SECONDS=60 (Linux on x86-64: atheris)
	$(BIN)/python tests/fuzz --seconds $(SECONDS) $(ARGS)

hostile: $(VENV)/.dev ## what hostile input costs: worst inputs of every decoder, thousands of idle, silent and greedy peers (a quiet machine)
	$(PYTEST) -m "not compat and not compose" -s --durations=20 $(ARGS) tests/hostile tests/integration/remoting/test_hostile_peers.py tests/integration/broker/test_open_file_limits.py

soak: $(VENV)/.dev ## producers, members that come and go, servers that restart, for MINUTES=20 (SEED=0 chooses one)
	$(BIN)/python tests/soak.py --minutes $(MINUTES) --seed $(SEED)

crash-test: $(VENV)/.dev ## kill a broker under load ROUNDS=200 times; the same SEED=0 goes on where it stopped
	$(BIN)/python tests/crash --rounds $(ROUNDS) --seed $(SEED) $(ARGS)

simulate: $(VENV)/.dev ## whole clusters under faults in virtual time: one history for each of SEEDS=300 from SEED=0 on; goes on where it stopped
	$(BIN)/python tests/simulate --seeds $(SEEDS) --seed $(SEED) $(ARGS)

fault-test: $(VENV)/.dev ## kill, cut off, fill, stop, cut the power of a cluster in network namespaces SCHEDULES=100 times (root; iproute2 iptables libfaketime)
	$(BIN)/python tests/faults schedules --schedules $(SCHEDULES) --seed $(SEED) $(ARGS)

fault-matrix: $(VENV)/.dev ## what each mode of flush and replication survives, measured: the table in docs/replication.md
	$(BIN)/python tests/faults matrix --seed $(SEED) $(ARGS)

fault-failovers: $(VENV)/.dev ## the master of three replicas killed and stopped under load, ours and Java's: losses and times, the table in docs/failover.md (root; make peers)
	$(BIN)/python tests/faults failovers $(ARGS)

spark-chaos: $(VENV)/.dev ## faults inside the micro-batches of Spark queries, RUNS=39 of them, and ten kills of a stream that writes; the same SEED=0 goes on where it stopped
	$(BIN)/python tests/spark_chaos --runs $(RUNS) --seed $(SEED) $(ARGS)

bench: $(VENV)/.dev peers ## side by side with the Java broker, in one run
	$(BIN)/python tests/bench/side_by_side.py $(ARGS)

figures: $(VENV)/.dev peers ## measure again what tests/figures.json says (a quiet machine; make compose-test ARGS=--record for the rest)
	$(BIN)/python tests/bench/bench_start.py --record
	$(BIN)/python tests/bench/bench_backlog.py --record
	$(BIN)/python tests/bench/bench_timers.py --pending 0 --record
	$(BIN)/python tests/bench/bench_queues.py --counts 8,50000 --no-java --record
	$(BIN)/python tests/bench/java_programs.py --only latency --record
	$(BIN)/python tests/bench/side_by_side.py --record

bench-store: $(VENV)/.dev peers ## what the store costs beside the Java broker (about 40 minutes; ARGS="--seconds 1 --rounds 1 --warm-up 10" for less), plots into docs
	$(BIN)/python tests/bench/bench_recovery.py
	$(BIN)/python tests/bench/store_side_by_side.py all $(ARGS)
	$(BIN)/python tests/bench/bench_queues.py --plot docs/plots $(ARGS)

bench-nats: $(VENV)/.dev ## the SDK beside nats-py with JetStream (needs nats-server), in one run of three minutes; ARGS=--kafka for aiokafka, too (needs `tests/compat/install_peers.py --kafka`)
	$(BIN)/python tests/bench/bench_nats.py $(ARGS)

bench-java-programs: $(VENV)/.dev peers ## RocketMQ's own Producer, BatchProducer and Consumer on both brokers, latency, memory (about 12 minutes)
	$(BIN)/python tests/bench/java_programs.py $(ARGS)

bench-special: $(VENV)/.dev peers ## timed messages, requests with replies and recalls on both brokers, with the Java client (about 8 minutes)
	$(BIN)/python tests/bench/special_side_by_side.py $(ARGS)

bench-grpc: $(VENV)/.dev peers ## sends and receives of clients of RocketMQ 5 (gRPC) beside Java's broker and proxy (about 4 minutes)
	$(BIN)/python tests/bench/bench_messaging.py $(ARGS)

bench-access: $(VENV)/.dev peers ## signed sends with users and rules, without both, and at Java's broker with its ACL (about 4 minutes)
	$(BIN)/python tests/bench/access_side_by_side.py $(ARGS)

bench-pop: $(VENV)/.dev peers ## POP of Java's push consumer and of our SDK at both brokers (about 4 minutes)
	$(BIN)/python tests/bench/bench_pop.py $(ARGS)

bench-kafka: $(VENV)/.dev ## batched publishing beside Kafka 3.9.1, which it brings first (about 4 minutes)
	$(BIN)/python tests/compat/install_peers.py --kafka
	$(BIN)/python tests/bench/kafka_side_by_side.py $(ARGS)

bench-spark: $(VENV)/.dev ## Spark's source and sink beside a null source and Spark's Kafka source, which it brings first (about 6 minutes)
	$(BIN)/python tests/compat/install_peers.py --kafka --spark-kafka
	$(BIN)/python tests/bench/spark_side_by_side.py $(ARGS)

bench-replication: $(VENV)/.dev peers ## master and slave beside Java's: sends that wait, lag, catch-up (about 5 minutes; PART=sync|lag|catch-up|all)
	$(BIN)/python tests/bench/replication_side_by_side.py $(PART) $(ARGS)

bench-controlled: $(VENV)/.dev peers ## sends to two and three replicas under a controller, beside Java's and our SYNC_MASTER (about 9 minutes)
	$(BIN)/python tests/bench/controlled_side_by_side.py $(ARGS)

bench-spark-workers: $(VENV)/.dev ## rows a second of a pipeline on a standalone cluster of 1 and 2 workers (about 3 minutes)
	$(BIN)/python tests/bench/spark_workers.py $(ARGS)

features: $(VENV)/.dev ## which rows of docs/features.md are proven, partly or not, by which tests (of the last make ci or test-all)
	@test -f .lanes/fast.features.json || { echo "make: there is no record of a run: make test-all or make ci writes it"; exit 1; }
	@$(BIN)/python tests/features.py $(ARGS) $(wildcard .lanes/*.features.json .lanes/*.features.alone.json)

compatibility: $(VENV)/.dev ## write docs/compatibility.md from the last make ci or test-all (ARGS=--check: only look whether it is the same)
	@test -f .lanes/compatibility-peers.json || { echo "make: there is no record of a run: make test-all or make ci writes it"; exit 1; }
	@$(BIN)/python tests/compatibility.py $(ARGS) $(wildcard .lanes/compatibility-*.json)

docs: $(VENV)/.dev ## write the generated pages again
	$(BIN)/python docs/generate.py

protobuf: $(VENV)/.dev ## write the classes of the gRPC protocol again, from remoting/grpc/apache_rocketmq/*.proto
	$(BIN)/python tests/generate_protobuf.py

$(VENV)/.docs: $(VENV)/.dev
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

site: $(VENV)/.docs ## the documentation as a site in .site, with search and the SDK reference; a link or name that leads nowhere fails it
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --config-file .mkdocs.yml && echo "open .site/index.html"

dist: $(VENV)/.dev ## sdist, and the wheel built from it
	$(BIN)/python -m build

clean: ## forget the environment and everything generated
	rm -rf triomq-spark.zip $(VENV) .demo .peers .bench .fuzz .crash .simulate .faults .spark-chaos .pythons .site dist .compose .lanes .mypy_cache .ruff_cache .hypothesis
