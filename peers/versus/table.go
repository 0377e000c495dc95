//go:build unix

package main

import (
	"fmt"
	"strings"
	"time"
)

// names are how the table calls the kinds.
var names = map[string]string{
	ours:              "Primacy",
	"etcd-election":   "etcd `concurrency.Election`",
	"etcd-mutex":      "etcd `concurrency.Mutex`",
	"plain-keepalive": "etcd `KeepAlive` and a key",
	"client-go":       "client-go `leaderelection`",
}

// table returns the results as Markdown, a row for each.
func table(results []result) string {
	var b strings.Builder
	b.WriteString("| candidates | faults | terms | two leaders at once | longest | in all | stale writes that arrived | acknowledged fenced writes lost | longest time without a leader |\n")
	b.WriteString("|---|--:|--:|--:|--:|--:|--:|--:|--:|\n")
	for _, r := range results {
		if r.failed != nil {
			fmt.Fprintf(&b, "| %s | no result | | | | | | | |\n", names[r.kind])
			continue
		}
		total := "?"
		if r.OverlappedMs != nil {
			total = milliseconds(*r.OverlappedMs)
		}
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %s | %s | %d | %d | %s |\n", names[r.kind], r.Faults, r.Terms, r.Overlaps,
			milliseconds(r.LongestOverlapMs), total, r.StaleUnfenced, r.FencedLost, milliseconds(r.LongestGapMs))
	}
	return b.String()
}

// milliseconds writes a duration for people: 0, 812 ms, 3.41 s. A short one does not become 0.
func milliseconds(ms float64) string {
	d := time.Duration(ms * float64(time.Millisecond))
	switch {
	case d == 0:
		return "0"
	case d < time.Millisecond:
		return "< 1 ms"
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.2f s", d.Seconds())
}
