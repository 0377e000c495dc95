# Each target with a ## line is shown by `make help`.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# Debian packages that tests need: network namespaces (a cut off etcd leader), a terminal (job control).
PACKAGES := iproute2 tmux
LIBRARY  := $$(go list ./... )
PROGRAM  := $$(cd cmd && go list ./...)
RACE     ?= -race

help: ## show this
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

build: ## build bin/primacy
	go build -o bin/primacy ./cmd/primacy

demo: ## the main job, on the embedded store
	go run ./cmd/primacy demo

# The etcd servers, the program and the tests are built before any test runs: a compiler beside them would make a test of time meaningless.
test: tools check ## everything that must hold: conformance, real etcd, real processes, real signals
	go test -timeout 11m ./internal/etcdtest
	go test $(RACE) -run '^$$' $(LIBRARY) $(PROGRAM) >/dev/null
	go test $(RACE) -timeout 11m $(LIBRARY) $(PROGRAM)

check: ## gofmt and vet, on both modules
	@out=$$(gofmt -l .); test -z "$$out" || { echo "not gofmt'ed: $$out"; exit 1; }
	go vet ./... && (cd cmd && go vet ./...)

oldest: ## the library against the oldest dependencies it names
	GOWORK=off go test -timeout 11m ./...

stress: ## the tests in fake time and on memstore, 50 times
	go test -race -count=50 . ./internal/core ./memstore ./drivertest ./open

conformance: tools ## the conformance suite on real etcd, COUNT times (default 50)
	go test -race -count=$${COUNT:-50} -timeout 60m -run 'Conformance' ./memstore ./etcdstore

torture: tools ## real processes under real faults, TORTURE_ROUNDS of them (default 100)
	cd cmd && TORTURE_ROUNDS=$${TORTURE_ROUNDS:-100} TORTURE_LONG=$${TORTURE_LONG:-10} go test $(RACE) -timeout 60m -v ./torture

lint: ## golangci-lint with .golangci.yml
	go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.6.2 run ./...

tools: # installs what is missing of PACKAGES
	@for p in $(PACKAGES); do dpkg -s $$p >/dev/null 2>&1 || missing="$${missing:-} $$p"; done; \
	if [ -n "$${missing:-}" ]; then \
		echo "installing$$missing"; apt-get update -q >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -qy $$missing >/dev/null; \
	fi

.PHONY: help build demo test check oldest stress conformance torture lint tools
