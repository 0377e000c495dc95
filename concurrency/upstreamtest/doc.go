// Package upstreamtest runs etcd's own tests of its package concurrency against ours. `make
// upstream` does, or
//
//	UPSTREAM=1 go test -timeout 60m -v ./concurrency/upstreamtest
//
// For each etcd version it copies etcd's test, server and etcdctl modules out of the module cache
// (downloading them first where they are not there) into a temporary folder, replaces the import
// of client/v3/concurrency by ours, and nothing else, and runs:
//
//   - the tests and examples of integration/clientv3/concurrency,
//   - those of elections, locks and STM in integration, through v3lock and v3election services
//     that use ours,
//   - those of the recipes, with a copy of the recipes that imports ours,
//   - that of sessions that come and go while connections fail,
//   - those of `etcdctl lock`, `etcdctl elect` and the services over HTTP, with etcd and etcdctl
//     built on ours.
//
// UPSTREAM is how often each is run, UPSTREAM_RACE=1 adds the race detector, UPSTREAM_ETCD names
// other versions, separated by commas.
package upstreamtest
