//go:build linux

package main

import (
	"errors"
	"net"
	"strconv"

	"github.com/primacy-go/primacy/internal/etcdtest"
)

// What stands in etcd, read and written past the program, over etcd's HTTP gateway.

// kv is a key in etcd. JSON has bytes in base64 and 64-bit numbers in strings, as Go's own encoding
// of []byte and etcd's.
type kv struct {
	Key            []byte `json:"key"`
	Value          []byte `json:"value"`
	Lease          string `json:"lease"`
	CreateRevision string `json:"create_revision"`
}

func (w *world) post(path string, in, out any) {
	w.Helper()
	var err error
	for range 5 { // each try has a short limit
		if err = w.server.Post(path, in, out); err == nil {
			return
		}
		if late, ok := errors.AsType[net.Error](err); !ok || !late.Timeout() {
			break
		}
	}
	w.Fatalf("etcd %s: %v", path, err)
}

// keys returns the keys below the prefix, oldest first.
func (w *world) keys(prefix string) []kv {
	w.Helper()
	var out struct {
		Kvs []kv `json:"kvs"`
	}
	end := []byte(prefix)
	end[len(end)-1]++ // no prefix of ours ends in 0xff
	w.post("/v3/kv/range", map[string]any{"key": []byte(prefix), "range_end": end, "sort_order": "ASCEND",
		"sort_target": "CREATE"}, &out)
	return out.Kvs
}

// line returns the claims on a name that needs no escaping, oldest first.
func (w *world) line(name string) []kv {
	w.Helper()
	return w.keys(w.prefix + name + "/")
}

// awaitLine waits until so many stand in the line.
func (w *world) awaitLine(name string, n int) []kv {
	w.Helper()
	var line []kv
	w.eventually(strconv.Itoa(n)+" stand for "+name, func() bool { line = w.line(name); return len(line) == n })
	return line
}

func (w *world) put(key string, value []byte, lease string) {
	w.Helper()
	w.post("/v3/kv/put", map[string]any{"key": []byte(w.prefix + key), "value": value, "lease": lease}, nil)
}

func (w *world) delete(key string) {
	w.Helper()
	w.post("/v3/kv/deleterange", map[string]any{"key": []byte(w.prefix + key)}, nil)
}

// grant returns a new lease that nobody keeps alive.
func (w *world) grant(seconds int) string {
	w.Helper()
	var out struct {
		ID string `json:"ID"`
	}
	w.post("/v3/lease/grant", map[string]any{"TTL": seconds}, &out)
	return out.ID
}

func (w *world) revoke(lease string) {
	w.Helper()
	w.post("/v3/lease/revoke", map[string]any{"ID": lease}, nil)
}

// newHole returns a way to the server that accepts connections and says nothing.
func newHole(w *world) *etcdtest.Proxy {
	w.Helper()
	hole := etcdtest.NewProxy(w, w.server.Addr())
	hole.Hold()
	return hole
}
