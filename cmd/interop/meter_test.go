//go:build linux

package interop

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// count is what a server has counted of its own work, since it started or between two readings.
type count struct {
	at       time.Time
	requests map[string]float64 // by method: messages that clients sent, each unary call being one
	events   float64            // watch events sent
	answers  float64            // messages on watch streams that the server sent
	in, out  float64            // bytes of gRPC
	cpu      float64            // seconds
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
	c := count{at: time.Now(), requests: map[string]float64{}}
	seen := 0
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
		_, method, _ := strings.Cut(labels, `grpc_method="`)
		method, _, _ = strings.Cut(method, `"`)
		etcd := strings.Contains(labels, `grpc_service="etcdserverpb.`)
		seen++
		switch {
		case name == "grpc_server_msg_received_total" && etcd:
			c.requests[method] += v
		case name == "grpc_server_msg_sent_total" && etcd && method == "Watch":
			c.answers += v
		case name == "etcd_debugging_mvcc_events_total":
			c.events = v
		case name == "etcd_network_client_grpc_received_bytes_total":
			c.in = v
		case name == "etcd_network_client_grpc_sent_bytes_total":
			c.out = v
		case name == "process_cpu_seconds_total":
			c.cpu = v
		default:
			seen--
		}
	}
	if seen < 6 {
		return c, fmt.Errorf("the server's metrics have other names than those read here: %d found", seen)
	}
	return c, in.Err()
}

// since returns what was counted from an earlier reading to c.
func (c count) since(b count) count {
	d := count{requests: map[string]float64{}, events: c.events - b.events, answers: c.answers - b.answers,
		in: c.in - b.in, out: c.out - b.out, cpu: c.cpu - b.cpu}
	for m, v := range c.requests {
		if v -= b.requests[m]; v != 0 {
			d.requests[m] = v
		}
	}
	return d
}

// less takes away f times d.
func (c count) less(d count, f float64) count {
	out := count{requests: maps.Clone(c.requests), events: c.events - f*d.events, answers: c.answers - f*d.answers,
		in: c.in - f*d.in, out: c.out - f*d.out, cpu: c.cpu - f*d.cpu}
	for m, v := range d.requests {
		out.requests[m] -= f * v
	}
	return out
}

// over divides by n.
func (c count) over(n float64) count {
	zero := count{requests: map[string]float64{}}
	return zero.less(c, -1/n)
}

func (c count) total() float64 {
	sum := 0.0
	for _, v := range c.requests {
		sum += v
	}
	return sum
}

// methods lists the requests, the most frequent first.
func (c count) methods() string {
	var parts []string
	for _, m := range slices.SortedFunc(maps.Keys(c.requests), func(a, b string) int { return int(1e6 * (c.requests[b] - c.requests[a])) }) {
		if v := c.requests[m]; v >= 0.05 || v <= -0.05 {
			parts = append(parts, fmt.Sprintf("%s %.1f", m, v))
		}
	}
	return strings.Join(parts, ", ")
}

// serverPID finds the server's process among our children.
func (w *world) serverPID() int {
	w.Helper()
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range all {
		line, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(line), w.server.Endpoint()+"\x00") || !strings.Contains(string(line), "--data-dir") {
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
