package main

import (
	"bufio"
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// The answer to a claim's Txn and the push of a watch come on two streams: what the answer names
// may be gone before it is read.
func TestTheFloorWaitsForAllWhoStoodBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &bareNews{watched: map[string]bool{"line/": true}, gone: map[string]bool{}}
		gone := func(key string) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.goneLocked(key)
		}
		ahead := func(keys ...string) (kvs []*mvccpb.KeyValue) {
			for _, k := range keys {
				kvs = append(kvs, &mvccpb.KeyValue{Key: []byte(k)})
			}
			return kvs
		}
		gone("line/1")
		if err := n.await(t.Context(), "line/", ahead("line/1"), 1); err != nil {
			t.Fatal(err)
		}
		var held [2]bool
		for i, before := range [][]string{{"line/1", "line/2", "line/3"}, {"line/2", "line/3", "line/4"}} {
			go func() { held[i] = n.await(t.Context(), "line/", ahead(before...), 1) == nil }()
		}
		for _, step := range []struct {
			gone string
			want [2]bool
		}{
			{"line/3", [2]bool{}}, {"line/9", [2]bool{}},
			{"line/2", [2]bool{true, false}}, {"line/4", [2]bool{true, true}},
		} {
			gone(step.gone)
			if synctest.Wait(); held != step.want {
				t.Errorf("%s is gone: %v, want %v", step.gone, held, step.want)
			}
		}
		if len(n.waiting) != 0 {
			t.Errorf("%d still wait", len(n.waiting))
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := n.await(ctx, "line/", ahead("line/5"), 1); err == nil {
			t.Error("a wait that was given up has succeeded")
		}
	})
}

func TestTheFloorsGroupsHaveAllNames(t *testing.T) {
	for _, c := range []struct{ names, groups int }{{1, 1}, {64, 1}, {126, 1}, {127, 2}, {1024, 9}, {10_000, 80}} {
		e := &Env{}
		names := e.Names("key", c.names)
		all, n := groups(names), 0
		for _, g := range all {
			if len(g.lines) > bareTogether {
				t.Errorf("%d names: %d in one Txn", c.names, len(g.lines))
			}
			for _, line := range g.lines {
				if line != bareLine(names[n]) {
					t.Fatalf("%d names: the %d. is in %s", c.names, n, line)
				}
				n++
			}
		}
		if len(all) != c.groups || n != c.names {
			t.Errorf("%d names: %d of them in %d groups, want %d", c.names, n, len(all), c.groups)
		}
	}
}

func TestTheFloorReadsRedisAnswers(t *testing.T) {
	answers := ":-12\r\n" + "$3\r\na\r\n\r\n" + "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$0\r\n\r\n" +
		"-ERR no\r\n" + "$-1\r\n"
	c := &bareConn{in: bufio.NewReader(strings.NewReader(answers))}
	for _, want := range [][]string{{"-12"}, {"a\r\n"}, {"message", "c", ""}} {
		if got, err := c.read(); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q, %v: want %q", got, err, want)
		}
	}
	for _, what := range []string{"an error", "nothing", "the end"} {
		if got, err := c.read(); err == nil {
			t.Errorf("%s: %q", what, got)
		}
	}
}
