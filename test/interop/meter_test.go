//go:build linux

package interop

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
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
	resp, err := http.Get(w.server.Endpoint() + "/metrics")
	if err != nil {
		w.Fatal(err)
	}
	defer resp.Body.Close()
	c, err := parseCount(resp.Body)
	if err != nil {
		w.Fatal(err)
	}
	return c
}

func parseCount(r io.Reader) (count, error) {
	c := count{at: time.Now()}
	seen := map[string]bool{}
	in := bufio.NewScanner(r)
	for in.Scan() {
		i := strings.LastIndexByte(in.Text(), ' ')
		if i < 0 || strings.HasPrefix(in.Text(), "#") {
			continue
		}
		v, err := strconv.ParseFloat(in.Text()[i+1:], 64)
		if err != nil {
			return c, err
		}
		name, labels, _ := strings.Cut(in.Text()[:i], "{")
		switch {
		case name == "grpc_server_msg_received_total" && strings.Contains(labels, `grpc_service="etcdserverpb.`):
			c.requests += v
		case name == "etcd_debugging_mvcc_events_total":
			c.events = v
		case name == "process_cpu_seconds_total":
			c.cpu = v
		default:
			continue
		}
		seen[name] = true
	}
	if len(seen) != 3 {
		return c, fmt.Errorf("the server's metrics have other names than those read here: only %v found", seen)
	}
	return c, in.Err()
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
