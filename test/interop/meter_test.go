//go:build linux

package interop

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// count is what a server has counted of its own work since it started.
type count struct {
	at       time.Time
	requests float64 // messages that clients sent, each unary call being one
	events   float64 // watch events sent
	cpu      float64 // seconds
}

// readCount asks the server.
func (w *world) readCount() count {
	w.Helper()
	c := count{at: time.Now()}
	seen := map[string]bool{}
	for _, m := range w.server.Metrics(w) {
		switch {
		case m.Name == "grpc_server_msg_received_total" && strings.HasPrefix(m.Label("grpc_service"), "etcdserverpb."):
			c.requests += m.Value
		case m.Name == "etcd_debugging_mvcc_events_total":
			c.events = m.Value
		case m.Name == "process_cpu_seconds_total":
			c.cpu = m.Value
		default:
			continue
		}
		seen[m.Name] = true
	}
	if len(seen) != 3 {
		w.Fatalf("the server's metrics have other names than those read here: only %v found", seen)
	}
	return c
}

// aSecond returns what was counted from b to c, in the mean second.
func (c count) aSecond(b count) count {
	s := c.at.Sub(b.at).Seconds()
	return count{requests: (c.requests - b.requests) / s, events: (c.events - b.events) / s, cpu: (c.cpu - b.cpu) / s}
}

// serverPID finds the server's process among our children.
func (w *world) serverPID() int {
	w.Helper()
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range all {
		line, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(line), w.server.Endpoint()+"\x00") ||
			!strings.Contains(string(line), "--data-dir") {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err == nil {
			return pid
		}
	}
	w.Fatal("the server's process is not found")
	return 0
}
