package etcdtest

import (
	"bufio"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// Metric is a number that a server tells about itself.
type Metric struct {
	Name   string
	Value  float64
	labels string
}

// Label returns the value of a label, empty if there is none.
func (m Metric) Label(name string) string {
	_, rest, _ := strings.Cut(","+m.labels, ","+name+`="`)
	value, _, _ := strings.Cut(rest, `"`)
	return value
}

// Metrics returns all numbers that the server tells about itself.
func (s *Server) Metrics(tb testing.TB) (all []Metric) {
	tb.Helper()
	resp, err := http.Get(s.Endpoint() + "/metrics")
	if err != nil {
		tb.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		line := lines.Text()
		i := strings.LastIndexByte(line, ' ')
		if i < 0 || strings.HasPrefix(line, "#") {
			continue
		}
		value, err := strconv.ParseFloat(line[i+1:], 64)
		if err != nil {
			tb.Fatal(err)
		}
		name, labels, _ := strings.Cut(line[:i], "{")
		all = append(all, Metric{name, value, labels})
	}
	if lines.Err() != nil {
		tb.Fatal(lines.Err())
	}
	return all
}

// Metric returns the sum of the numbers of that name, of which there must be one.
func (s *Server) Metric(tb testing.TB, name string) (sum float64) {
	tb.Helper()
	found := false
	for _, m := range s.Metrics(tb) {
		if m.Name == name {
			sum, found = sum+m.Value, true
		}
	}
	if !found {
		tb.Fatalf("etcd tells nothing of %s", name)
	}
	return sum
}
