//go:build linux

package main

import (
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/safety"
)

// faults are what is done to a leader: each returns when it has been undone.
var faults = map[string]func(a *group, w *worker){
	// All of the process stands still for longer than the TTL.
	"frozen": func(a *group, w *worker) {
		a.signal(w, syscall.SIGSTOP)
		time.Sleep(2 * testTTL)
		a.signal(w, syscall.SIGCONT)
		time.Sleep(testTTL)
	},
	// Nothing passes any more between it and etcd.
	"silent link": func(a *group, w *worker) {
		w.proxy.Hold()
		time.Sleep(3 * testTTL)
		w.proxy.Heal()
	},
	// The link comes back about when another takes over: client-go's late release then meets the
	// other one's lease.
	"link silent for a ttl": func(a *group, w *worker) {
		w.proxy.Hold()
		time.Sleep(testTTL * 11 / 10)
		w.proxy.Heal()
		time.Sleep(testTTL)
	},
	// Replies come late once, and then nothing passes any more.
	"late reply, then silent": func(a *group, w *worker) {
		w.proxy.Hold(etcdtest.Down)
		time.Sleep(testTTL * 6 / 10)
		w.proxy.Heal()
		time.Sleep(20 * time.Millisecond)
		w.proxy.Hold()
		time.Sleep(3 * testTTL)
		w.proxy.Heal()
	},
}

// pause is how long a worker that is awake may be silent at most, on a busy machine.
const pause = 250 * time.Millisecond

// overlaps returns who acted beside whom under another token, the longest first. A process that is
// frozen and then acts once more has not acted in between.
func overlaps(acts []act) []safety.Overlap {
	var all []safety.Act
	for _, x := range acts {
		all = append(all, safety.Act{At: time.Duration(x.at), Token: x.token, Who: x.id})
	}
	_, pieces := safety.Terms("job", all, pause)
	return slices.DeleteFunc(safety.Overlaps(pieces),
		func(o safety.Overlap) bool { return o.Older.Token == o.Younger.Token })
}

// longest returns the longest of overlaps, and all together.
func longest(overlaps []safety.Overlap) (most, total time.Duration) {
	for _, o := range overlaps {
		most, total = max(most, o.For), total+o.For
	}
	return most, total
}

// maxTries is how often a fault is injected that must show an overlap: each does in about five
// of six times.
const maxTries = 8

// TestFaults injects faults into leaders and says how often and how long two acted at once. It
// proves that the workers can fail: etcd's package and a bare keepalive count a lease from its
// reply, so a reply that came late must make them overlap. PEERS_ROUNDS is how often each fault is
// injected, 1 by default, and PEERS_FAULT the only one that is.
func TestFaults(t *testing.T) {
	n, _ := strconv.Atoi(os.Getenv("PEERS_ROUNDS"))
	n = max(n, 1)
	for _, fault := range slices.Sorted(maps.Keys(faults)) {
		if !strings.Contains(fault, os.Getenv("PEERS_FAULT")) {
			continue
		}
		for _, kind := range slices.Sorted(maps.Keys(kinds)) {
			t.Run(kind+"/"+fault, func(t *testing.T) {
				t.Parallel()
				a := newGroup(t, kind, etcdtest.Start(t, etcdtest.Options{}), 3)
				must, done := fault == "late reply, then silent" && kind != "client-go", 0
				for done < n || must && done < maxTries && len(overlaps(a.acts())) == 0 {
					done++
					w, _ := a.leader(nil, 20*time.Second)
					time.Sleep(testTTL / 2)
					faults[fault](a, w)
				}
				a.leader(nil, 20*time.Second) // it goes on
				for _, w := range a.workers {
					a.end(w)
				}
				a.checkWrites(t)
				o := overlaps(a.acts())
				most, total := longest(o)
				t.Logf("RESULT %s, %s, %d times: %d overlaps, longest %v, in all %v; the fence refused %d of %d writes", kind, fault, done, len(o),
					most.Round(time.Millisecond), total.Round(time.Millisecond), a.sink.refused, a.sink.asked)
				if must && len(o) == 0 {
					t.Error("it came through: the fault is too weak to prove anything")
				}
			})
		}
	}
}
