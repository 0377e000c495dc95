# Each target with a ## line is shown by `make help`.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# Debian packages that tests need: network namespaces (a cut off etcd leader), a terminal (job control), a model checker and its
# compiler, servers that are stores or stand behind a fence (redis-tools holds the server's program), the program whose tools work with ours (patroni), proxies that follow a leader, the parser of alert rules, a
# browser. No service is started.
PACKAGES := iproute2 tmux spin gcc libc6-dev postgresql patroni redis-tools zookeeper haproxy nginx caddy prometheus chromium curl python3 nodejs bash-completion systemd
TORTURE  := github.com/primacy-go/primacy/test/torture
# The slowest first, so that the last to run are short ones.
LIBRARY  := $$(go list ./etcdstore ./pgstore ./zkstore ./k8sstore ./concurrency ./redisstore . ./redlockstore ./fence/filefence ./...)
PROGRAM  := $$(go list ./cmd/primacy ./test/torture ./cmd/internal/supervise ./test/page ./test/golden ./cmd/internal/postgres/server ./test/interop ./cmd/internal/postgres/clone ./cmd/internal/postgres/core ./cmd/internal/cron ./cmd/internal/agent ./test/failover ./cmd/internal/embedded ./test/examples ./test/fencetest ./cmd/internal/etcdapi ./test/sim ./cmd/... ./leaderelection/... ./test/... | grep -vE '/test/(bench|peers|mutations|spec|etcdleases)(/|$$)')
# Few seeds of what runs in a simulated world: make verify has the many. -short leaves out or shortens what is slow and proves little in a
# second. The race parts of make verify, and torture-each, run without it: they have every test at its full length.
SHORT    := ETCD_SEEDS=1 AWAIT_SEEDS=1 LIVE_SEEDS=1 CRON_SEEDS=2
CROWD    := ^TestAThousandWaiters$$
RACE     ?= -race
# Another first seed in each run: one that always plays the same seeds shows no more than the first run did. FIRST=1 plays those of before.
FIRST    := $(or $(FIRST),$(shell date +%s)000000)
# The parts of make verify beside the mutations. .ci/run does one of them in turn, and a slice of the mutations.
VERIFY   := race-library race-primacy race-internal models conformance-all others torture-etcd torture-each torture-stores services shell

help: ## show this
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

build: ## build bin/primacy
	go build -o bin/primacy ./cmd/primacy

demo: ## the main job, on the embedded store
	go run ./cmd/primacy demo

# All packages by go list, but the models, the mutations, other libraries and the benchmark, which make verify has. Everything is compiled before any
# test by the clock runs, once, without the race detector. No vet: it costs minutes with empty caches; make verify has it, in check. -w: test
# programs without tables for debuggers link faster. A package that has passed is not run again unless something that it reads has changed, in the
# program's modules anything (-files): TESTFLAGS=-count=1 runs all. TestImportRules asks go list, of which go test does not see what it reads.
QUICKLY  := -short -vet=off -ldflags=-w -timeout 12m -p 3 -parallel 4 $(TESTFLAGS) -skip '$(CROWD)'

test: tools ## what a newcomer and each push run: every package, every store on its real server, a short torture
	@out=$$(gofmt -l .); test -z "$$out" || { echo "not gofmt'ed: $$out"; exit 1; }
	@echo "compiling"; go list -export -test -deps -f "" $(LIBRARY) $(PROGRAM) >/dev/null
	@failed=; export $(SHORT); \
	go run ./test/gotest -slow 10 . $(QUICKLY) $(LIBRARY) || failed=yes; \
	go test -count=1 -short -vet=off -ldflags=-w -run '^TestImportRules$$' . || failed=yes; \
	go run ./test/gotest -slow 10 -files . . $(QUICKLY) $(PROGRAM) || failed=yes; \
	test -z "$$failed"

verify: export KUBE_APISERVER = real
verify: tools kube-apiserver ## everything, hours: each part of VERIFY in turn and all mutations (make verify VERIFY="check race-library")
	@for part in $(VERIFY) mutations; do scripts/part.sh $$part || failed="$${failed:-} $$part"; done; \
	if [ -n "$${failed:-}" ]; then echo "failed:$$failed"; exit 1; fi

race-library: tools ## the library under the race detector
	go run ./test/gotest . -race -timeout 30m -p 2 -parallel 4 ./... ./leaderelection/...

race-program: race-primacy race-internal ## the program and the test programs under the race detector

# Two parts: in one they take longer than .ci/run has time for.
race-primacy: tools
	go run ./test/gotest -files . . -race -timeout 30m -parallel 4 ./cmd/primacy

# Not the torture, the mutations and the other libraries, which are parts of their own or in one.
race-internal: tools
	go run ./test/gotest -files . . -race -timeout 30m -p 2 -parallel 4 -skip '$(CROWD)' $$(go list ./cmd/... ./test/... | grep -vE '/(cmd/primacy|test/torture|test/mutations|test/peers)(/|$$)')

torture-each: tools ## each test of the torture at its ordinary length, under the race detector
	go run ./test/gotest -files . . -race -timeout 30m ./test/torture

race: race-library race-program ## all tests under the race detector, some 20 minutes

check: ## gofmt and vet, on all modules
	@out=$$(gofmt -l .); test -z "$$out" || { echo "not gofmt'ed: $$out"; exit 1; }
	go vet ./... ./leaderelection/... && (cd cmd && go vet ./...)
	cd test && go vet $$(go list ./... | grep -v /peers/worker)
	cd examples/operator && GOWORK=off go vet ./...

oldest: ## the library against the oldest dependencies it names
	GOWORK=off go test -timeout 11m ./...
	cd leaderelection && GOWORK=off go test -timeout 11m ./...

kube-apiserver: ## build the API server that the tests of k8sstore run on, once on this machine: 5 minutes
	KUBE_APISERVER=real go test -count=1 -timeout 120m -v -run '^TestTheServerIsBuilt$$' ./internal/k8stest

stress: ## the tests in fake time COUNT times (default 50), and SEEDS (default 5000) seeds of the shell under faults
	go test -race -count=$${COUNT:-50} -timeout 90m -skip 'TestStress|TestSimulated|TestAPlainChange' . ./internal/core ./memstore ./driver/drivertest ./open
	STRESS_SEED=$(FIRST) STRESS_SEEDS=$${SEEDS:-5000} ETCD_SEED=$(FIRST) ETCD_SEEDS=500 go test -timeout 90m -v -run '^(TestStress|TestSimulatedCluster)$$' .

conformance: tools ## the conformance suite on real servers of each store, COUNT times (default 50)
	go test -race -count=$${COUNT:-50} -timeout 60m -run 'Conformance' ./memstore ./etcdstore ./pgstore ./redisstore ./zkstore ./redlockstore ./registerstore
	KUBE_APISERVER=real go test -race -count=$$(( ($${COUNT:-50} + 1) / 2 )) -timeout 60m -run 'Conformance' ./k8sstore

torture: tools ## real processes and a real cluster under real faults, FOR (default 10m)
	cd test && TORTURE_FOR=$${FOR:-10m} go test -count=1 -timeout 60m -v -run 'TestTorture$$' ./torture

torture-all: tools ## the same, and every other torture test for longer
	cd test && TORTURE_FOR=$${FOR:-10m} TORTURE_CONTROL_FOR=4m TORTURE_ROUNDS=100 TORTURE_LONG=10 go test -count=1 $(RACE) -timeout 90m -v ./torture

stores: tools kube-apiserver ## every store but etcd: their servers' own faults at length, then ROUNDS faults of real processes on each (default 24), and each FOR (default 5m), as many at once as there are processors
	PRIMACY_PG_LONG=1 PRIMACY_ZK=all TORTURE_REDIS=1 PRIMACY_REDLOCK_JUDGE=60s go test -count=1 -p 1 -timeout 40m ./internal/zktest ./pgstore ./redisstore ./redlockstore ./zkstore
	REGISTER_SEEDS=$${SEEDS:-2000} go test -count=1 -timeout 30m -run '^TestNeverTwo$$' ./registerstore
	cd test && TORTURE_ROUNDS=$${ROUNDS:-24} go test -count=1 -timeout 60m -v -run 'TestRunOnStores$$' ./torture
	cd test && TORTURE_FOR=$${FOR:-5m} go test -count=1 -timeout 60m -v -run 'TestTortureOnStores$$' ./torture

locks: tools ## histories of locks from 8 processes under faults, judged by porcupine: FOR each kind (default 5m)
	for kind in mutex rw semaphore; do \
		(cd test && LOCKS_KIND=$$kind LOCKS_FOR=$${FOR:-5m} go test -count=1 -timeout 60m -v -run 'TestLockHistories$$' ./torture) || exit 1; done

shards: tools ## 8 processes of a group of 256 shards are killed, frozen, cut off, and come and leave, FOR (default 10m)
	cd test && SHARDS_FOR=$${FOR:-10m} go test -count=1 -timeout 2h -v -run 'TestShards$$' ./torture

crowd: tools ## a thousand waiters on one lock: what a release costs, beside etcd's own mutex
	cd test && go test -count=1 -timeout 5m -v -run TestAThousandWaiters ./interop

failover: tools ## a service on three machines behind HAProxy, ROUNDS faults of its leader (default 20): its clients never reach two
	cd test && FAILOVER_CONTROL=1 FAILOVER_ROUNDS=$${ROUNDS:-20} go test -count=1 -timeout 60m -v -run TestFailover ./failover

cron: tools ## 50 jobs at second granularity on 5 processes that are killed, FOR (default 10m): every instant once, or lost and its policy followed
	cd cmd && CRON_SEEDS=60 go test -count=1 -timeout 60m -run 'TestSimul|Forgets' ./internal/cron
	cd cmd && CRON_FOR=$${FOR:-10m} go test -count=1 -timeout 60m -v -run TestCronFleet ./primacy

readers: tools ## READERS of events (default 900) beside loops that compute, ten runs at a TTL of 3 s: no term lost, few requests to the store
	cd cmd && READERS=$${READERS:-900} go test -count=1 -timeout 30m -v -run 'TestServeManyReaders$$' ./primacy

release: ## static programs, .deb and .rpm, man pages, SBOM, into dist/
	scripts/release.sh

image: ## the program of the container image is static and needs nothing beside it
	cd cmd && IMAGE=1 go test -count=1 -timeout 10m -v -run TestTheImagesProgramIsAlone ./primacy

release-test: ## a release made twice is the same, and what it installs works
	scripts/release_test.sh

bench: tools ## ours beside etcd's own package, by the clock, 16 minutes; BENCH="-rows 6,10" for some rows (test/bench/README.md)
	go run ./test/bench $(BENCH)

spurious: ## terms lost for nothing by TTL: idle, under load, and when etcd's leader is killed, MINUTES each (default 10)
	SPURIOUS_MINUTES=$${MINUTES:-10} SPURIOUS_KILLS=15 go test -count=1 -v -timeout 2h -run TestSpuriousLosses ./etcdstore

upstream: ## etcd's own tests of its concurrency package, and client-go's of its leaderelection, against ours, TIMES (default 1)
	UPSTREAM=$${TIMES:-1} go test -count=1 -timeout 60m -v ./concurrency/upstreamtest
	go test -count=$${TIMES:-1} -timeout 20m -v -run '^TestUpstream$$' ./leaderelection

operator: ## a manager of controller-runtime under our term: rolling updates, kills, partitions, TIMES (default 1)
	cd examples/operator && GOWORK=off go test -race -count=$${TIMES:-1} -timeout 30m -v ./...

sim: ## the deterministic simulation, FOR (default 10m); go run ./test/sim/run -seed N replays one seed
	go run ./test/sim/run -first $(FIRST) -for $${FOR:-10m}
	go run ./test/sim/run -first $(FIRST) -store shards -for 1m

pgsim: ## the decisions of primacy postgres in a simulated world, FOR (default 10m)
	cd cmd && go run ./internal/postgres/sim/run -first $(FIRST) -for $${FOR:-10m}

pgtorture: tools ## three machines with primacy postgres and PostgreSQL under writers: real faults, FOR (default 30m), every acknowledged row on all of them; PEER=patroni, SERIES=1: see test/pgtorture/doc.go
	cd test && PGTORTURE_CONTROL=1 PGTORTURE_ASYNC=1 PGTORTURE_FOR=$${FOR:-30m} PGTORTURE_PEER=$$PEER PGTORTURE_RESULTS=$$RESULTS PGTORTURE_SERIES=$$SERIES go test -count=1 -timeout 180m -v $${PEER:+-run TestTorture} ./pgtorture

mutations: tools ## each rule taken out of the library in turn: a test must notice; MUTATIONS_SLICE=3/10 takes every tenth from the fourth on, MUTATIONS_FOR=10m begins none later
	MUTATIONS=$${MUTATIONS:-all} go test -count=1 -timeout 180m -v ./test/mutations

spec: tools ## the protocol, model-checked: all rules hold, and what goes wrong without each
	go run ./test/spec -j 2

seals: ## who may promote a standby of PostgreSQL: every order of steps within bounds, minutes
	SEAL_SEARCH=large go test -count=1 -timeout 40m -v -run 'TestNothingIsLostInAnyOrder|TestTheSearchFindsEachBrokenRule' ./cmd/internal/postgres/core

fence: tools ## the fences against real servers
	go test $(RACE) -timeout 3m ./fence/... ./test/fencetest

versus: tools ## the same torture with ours, etcd's own package, a bare keepalive and client-go as candidates, FOR each (default 2m)
	cd test/peers && go run ./versus -for $${FOR:-2m}

electors: kube-apiserver ## client-go's elector beside ours on a real API server: ROUNDS (default 30) of five faults in real processes, and rolling restarts FOR (default 10m)
	ELECTORS_ROUNDS=$${ROUNDS:-30} ELECTORS_TIMES=$$TIMES KUBE_APISERVER=real go test -count=1 -timeout 120m -v -run TestSideBySide ./leaderelection/peerstest
	ELECTORS_FOR=$${FOR:-10m} KUBE_APISERVER=real go test -count=1 -timeout 120m -v -run TestRollingRestarts ./leaderelection/peerstest

peers: ## the tests of the other libraries' workers
	cd test && go vet ./peers/... && go test -timeout 10m ./peers/...

# Parts of make verify that are made of others: each takes at most 20 minutes on 2 cores.
models: check lint
	$(MAKE) spec seals sim pgsim FOR=3m

conformance-all:
	$(MAKE) conformance COUNT=5

others:
	$(MAKE) upstream oldest peers operator

torture-etcd:
	$(MAKE) torture FOR=6m
	$(MAKE) locks FOR=2m

torture-stores:
	$(MAKE) stores FOR=1m ROUNDS=12 SEEDS=500

services:
	$(MAKE) cron FOR=3m
	$(MAKE) shards FOR=2m
	$(MAKE) failover ROUNDS=10
	$(MAKE) crowd
	$(MAKE) readers

shell:
	$(MAKE) stress COUNT=5 SEEDS=500

parts: # the names of the parts of make verify
	@echo $(VERIFY)

lint: ## golangci-lint with .golangci.yml, on all modules
	for module in . cmd leaderelection test; do (cd $$module && go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.6.2 run) || failed=yes; done; test -z "$${failed:-}"

tools: # installs what is missing of PACKAGES
	@for p in $(PACKAGES); do dpkg -s $$p >/dev/null 2>&1 || missing="$${missing:-} $$p"; done; \
	command -v kubectl >/dev/null || missing="$${missing:-} kubernetes-client"; \
	if [ -n "$${missing:-}" ]; then \
		echo "installing$$missing"; mkdir -p /etc/postgresql-common; \
		test -e /etc/postgresql-common/createcluster.conf || echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf; \
		test -e /usr/sbin/policy-rc.d || { printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d; chmod +x /usr/sbin/policy-rc.d; trap 'rm /usr/sbin/policy-rc.d' EXIT; }; \
		apt-get update -q >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends -o Dpkg::Options::=--force-confold $$missing >/dev/null; \
	fi

.PHONY: help kube-apiserver build demo test verify race race-library race-program race-primacy race-internal models conformance-all others torture-etcd torture-each torture-stores services shell check oldest stress conformance torture torture-all stores locks shards crowd upstream operator failover cron readers release release-test image bench spurious sim pgsim pgtorture mutations spec seals fence versus electors peers lint tools parts
