//go:build linux

package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/history"
)

// faults are what is done to a leader: each returns when it has been undone.
var faults = map[string]func(a *arena, w *worker){
	// All of the process stands still for longer than the TTL.
	"frozen": func(a *arena, w *worker) {
		a.signal(w, syscall.SIGSTOP)
		time.Sleep(2 * testTTL)
		a.signal(w, syscall.SIGCONT)
		time.Sleep(testTTL)
	},
	// Nothing passes any more between it and etcd.
	"silent link": func(a *arena, w *worker) {
		w.proxy.Hold()
		time.Sleep(3 * testTTL)
		w.proxy.Heal()
	},
	// The link comes back about when another takes over: client-go's late release then meets the other one's lease.
	"link silent for a ttl": func(a *arena, w *worker) {
		w.proxy.Hold()
		time.Sleep(testTTL * 11 / 10)
		w.proxy.Heal()
		time.Sleep(testTTL)
	},
	// Replies come late once, and then nothing passes any more.
	"late reply, then silent": func(a *arena, w *worker) {
		w.proxy.Hold(etcdtest.Down)
		time.Sleep(testTTL * 6 / 10)
		w.proxy.Heal()
		time.Sleep(20 * time.Millisecond)
		w.proxy.Hold()
		time.Sleep(3 * testTTL)
		w.proxy.Heal()
	},
}

// overlap is what was seen of two that acted under different tokens at once.
type overlap struct {
	count          int
	longest, total time.Duration
}

// pause is how long a worker that is awake may be silent at most, on a busy machine.
const pause = 250 * time.Millisecond

// spells returns when each acted without a pause: a process that is frozen and then acts once more has not acted in between.
func spells(acts []act) []history.Interval {
	var all []history.Interval
	open := map[string]int{}
	for _, x := range acts {
		who, at := fmt.Sprint(x.token, x.id), time.Duration(x.at)
		if i, ok := open[who]; ok && at-all[i].To <= pause {
			all[i].To = at
			continue
		}
		open[who] = len(all)
		all = append(all, history.Interval{Token: x.token, Who: x.id, From: at, To: at})
	}
	return all
}

// overlaps counts the spells that begin in another one's, under another token. A single late act is one of length 0.
func overlaps(acts []act) (o overlap) {
	all := spells(acts)
	for i, x := range all {
		var worst time.Duration
		met := false
		for k, y := range all {
			if i == k || x.Token == y.Token || x.From < y.From || x.From >= y.To {
				continue
			}
			met, worst = true, max(worst, min(x.To, y.To)-x.From)
		}
		if met {
			o.count++
			o.total += worst
			o.longest = max(o.longest, worst)
		}
	}
	return o
}

// patience is how often a fault strikes that must show an overlap: each does in about five of six strikes.
const patience = 8

// TestFaults strikes leaders and says how often and how long two acted at once. It proves that the workers can fail: etcd's
// package and a bare keepalive count a lease from its reply, so a reply that came late must make them overlap. PEERS_ROUNDS
// is how often each fault strikes, 1 by default, and PEERS_FAULT the only one that does.
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
				a := newArena(t, kind, etcdtest.Start(t, etcdtest.Options{}), 3)
				must, done := fault == "late reply, then silent" && kind != "client-go", 0
				for done < n || must && done < patience && overlaps(a.acts()).count == 0 {
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
				t.Logf("RESULT %s, %s, %d times: %d overlaps, longest %v, in all %v; the fence refused %d of %d writes", kind, fault, done, o.count,
					o.longest.Round(time.Millisecond), o.total.Round(time.Millisecond), a.sink.refused, a.sink.asked)
				if must && o.count == 0 {
					t.Error("it came through: the fault is too weak to prove anything")
				}
			})
		}
	}
}
