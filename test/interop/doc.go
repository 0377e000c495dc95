// Package interop puts etcd's own clients and ours into one line and holds them to its order:
// `etcdctl lock`, `etcdctl elect`, the server's lock and election services, etcd's package
// concurrency unchanged, and this library and its program. It has tests only.
package interop
