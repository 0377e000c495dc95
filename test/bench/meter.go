package main

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/primacy-go/primacy/internal/etcdtest"
)

// Counts are what etcd's own metrics say, summed over the members.
type Counts struct {
	Unary     map[string]float64 // requests handled, by method
	Stream    map[string]float64 // messages received on streams, by method
	Proposals float64            // committed by raft
	Watches   float64
	Keys      float64 // each member has all of them
	Resident  float64 // bytes of the servers
}

// count asks all members. Its own question is no gRPC request.
func count(c *etcdtest.Cluster) (Counts, error) {
	n := Counts{Unary: map[string]float64{}, Stream: map[string]float64{}}
	for _, m := range c.Members {
		text, err := metrics(m.Endpoint())
		if err != nil {
			return n, err
		}
		n.read(text)
		text.Close()
	}
	return n, nil
}

func metrics(endpoint string) (io.ReadCloser, error) {
	client := http.Client{Timeout: 10 * time.Second}
	resp, err := client.Get(endpoint + "/metrics")
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		return nil, fmt.Errorf("metrics: %s", resp.Status)
	}
	return resp.Body, nil
}

// read adds one member's metrics.
func (n *Counts) read(text io.Reader) {
	lines := bufio.NewScanner(text)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		name, rest, ok := strings.Cut(lines.Text(), " ")
		if !ok || strings.HasPrefix(name, "#") {
			continue
		}
		v, err := strconv.ParseFloat(rest, 64)
		if err != nil {
			continue
		}
		metric, labels, _ := strings.Cut(name, "{")
		n.add(metric, labels, v)
	}
}

func (n *Counts) add(metric, labels string, v float64) {
	switch metric {
	case "grpc_server_handled_total":
		if label(labels, "grpc_type") == "unary" {
			n.Unary[label(labels, "grpc_method")] += v
		}
	case "grpc_server_msg_received_total":
		if label(labels, "grpc_type") == "bidi_stream" {
			n.Stream[label(labels, "grpc_method")] += v
		}
	case "etcd_server_proposals_committed_total":
		n.Proposals = max(n.Proposals, v) // each member counts all of them
	case "etcd_debugging_mvcc_watcher_total":
		n.Watches += v
	case "etcd_debugging_mvcc_keys_total":
		n.Keys += v
	case "process_resident_memory_bytes":
		n.Resident += v
	}
}

func label(labels, name string) string {
	_, rest, _ := strings.Cut(labels, name+`="`)
	v, _, _ := strings.Cut(rest, `"`)
	return v
}

// since returns what was counted after an earlier count. Watches, keys and memory stay what they
// are.
func (n Counts) since(before Counts) Counts {
	d := Counts{Unary: less(n.Unary, before.Unary), Stream: less(n.Stream, before.Stream),
		Proposals: n.Proposals - before.Proposals, Watches: n.Watches, Keys: n.Keys, Resident: n.Resident}
	return d
}

func less(a, b map[string]float64) map[string]float64 {
	d := maps.Clone(a)
	for k := range d {
		d[k] -= b[k]
	}
	return d
}

// requests are those that keys are read and written with, in all.
func (n Counts) requests() float64 {
	total := 0.0
	for _, method := range []string{"Range", "Put", "DeleteRange", "Txn", "LeaseGrant", "LeaseRevoke", "LeaseTimeToLive", "Compact"} {
		total += n.Unary[method]
	}
	return total
}
