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
	b.WriteString("| candidates | faults | terms | two leaders at once | longest | in all | stale writes that " +
		"arrived | acknowledged fenced writes lost | acted on after its claim was deleted by hand, at most | " +
		"longest time without a leader |\n")
	b.WriteString("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n")
	for _, r := range results {
		if r.failed != nil {
			fmt.Fprintf(&b, "| %s | no result | | | | | | | | |\n", names[r.kind])
			continue
		}
		total, deaf := short(r.total), "–" // no such fault met it
		if r.deaf > 0 {
			deaf = short(r.deaf)
		}
		if r.more {
			total = "> " + total
		}
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %s | %s | %d | %d | %s | %s |\n", names[r.kind], r.faults, r.terms,
			r.overlaps,
			short(r.longest), total, r.stale, r.lost, deaf, short(r.gap))
	}
	return b.String()
}

// short writes a duration for people: 0, 812 ms, 3.41 s. A short one does not become 0.
func short(d time.Duration) string {
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
