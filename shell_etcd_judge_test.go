package primacy

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"
)

// rule is one term as the judge of the simulated cluster knows it.
type rule struct {
	term    *Term
	m       *node
	over    bool // Check said no once
	working bool
	slept   bool // its machine was suspended under it, and nothing can stop work that does not run
	lost    bool // it ended before its work was done
}

func (w *rule) String() string { return fmt.Sprintf("n%d under token %d", w.m.i, w.term.Token()) }

// excuse says that an operator took a term away: the store breaks its promise there, and news of it needs time.
func (r *rig) excuse(name string, token uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.excused[name] == nil {
		r.excused[name] = map[uint64]bool{}
	}
	r.excused[name][token] = true
}

func (r *rig) won(m *node, t *Term) *rule {
	r.logf("n%d leads %s under token %d", m.i, t.Name(), t.Token())
	r.mu.Lock()
	w := &rule{term: t, m: m, working: true}
	for _, old := range r.reigns[t.Name()] {
		if old.term.Token() >= t.Token() && !r.excused[t.Name()][uint64(t.Token())] && t.Check() == nil {
			r.failLocked("%s: token %d leads after token %d", t.Name(), t.Token(), old.term.Token())
		}
	}
	r.reigns[t.Name()] = append(r.reigns[t.Name()], w)
	r.mu.Unlock()
	r.look()
	return w
}

func (r *rig) stopped(w *rule) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w.working = false
	r.tally.terms++
	if w.lost {
		r.tally.lost++
	}
	r.lineLocked("n%d stops work on %s (token %d)", w.m.i, w.term.Name(), w.term.Token())
}

// poll looks every few milliseconds. What it finds it finds at an instant of fake time, in which nothing else moves on.
func (r *rig) poll(quit chan struct{}) {
	for {
		select {
		case <-quit:
			return
		case <-time.After(23 * time.Millisecond):
			r.look()
		}
	}
}

// look demands that of each name at most one Check says yes and one work runs, and that a Check that said no says no for ever.
func (r *rig) look() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, all := range r.reigns {
		var live, work []*rule
		for _, w := range all {
			if w.over && !w.working {
				continue
			}
			yes := w.term.Check() == nil
			if yes && w.over {
				r.failLocked("%s: %v: Check says yes after it has said no", name, w)
			}
			w.over = w.over || !yes
			if r.excused[name][uint64(w.term.Token())] {
				continue
			}
			if yes {
				live = append(live, w)
			}
			if w.working && !w.slept {
				work = append(work, w)
			}
		}
		if len(live) > 1 {
			r.failLocked("%s has two leaders: %v and %v", name, live[0], live[1])
		}
		if len(work) > 1 {
			r.failLocked("%s: work runs twice: %v and %v", name, work[0], work[1])
		}
	}
}

// asleep notes a suspend of m.
func (r *rig) asleep(m *node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, all := range r.reigns {
		for _, w := range all {
			w.slept = w.slept || w.m == m
		}
	}
}

func (r *rig) logf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lineLocked(format, args...)
}

func (r *rig) lineLocked(format string, args ...any) {
	r.lines = append(r.lines, fmt.Sprintf("%10.3fs  ", (r.now()-time.Hour).Seconds())+fmt.Sprintf(format, args...))
}

func (r *rig) failf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failLocked(format, args...)
}

// failLocked tells the first failures only: what follows is mostly the same one, seen at the next look.
func (r *rig) failLocked(format string, args ...any) {
	if r.bad++; r.bad > 3 {
		return
	}
	r.t.Errorf("seed %d, at %.3fs: %s", r.seed, (r.now() - time.Hour).Seconds(), fmt.Sprintf(format, args...))
	r.lineLocked("------->  "+format, args...)
}

func (r *rig) logger(i int) *slog.Logger {
	return slog.New(slog.NewTextHandler(logLine(func(line string) { r.logf("  n%d: %s", i, line) }), &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == "id" {
				return slog.Attr{}
			}
			return a
		},
	}))
}

// logLine is a writer of one line at a time.
type logLine func(line string)

func (f logLine) Write(b []byte) (int, error) {
	f(strings.TrimSpace(string(b)))
	return len(b), nil
}

// report prints the timeline up to the last failure told.
func (r *rig) report() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bad == 0 {
		return
	}
	end := len(r.lines)
	for i, l := range r.lines {
		if strings.Contains(l, "------->") {
			end = i + 1
		}
	}
	from := max(0, end-120)
	r.t.Logf("again, though not to the bit: ETCD_SEED=%d ETCD_SEEDS=1 go test -count=5 -run '^TestSimulatedCluster$' .\nthe last %d of %d lines:\n%s",
		r.seed, end-from, end, strings.Join(r.lines[from:end], "\n"))
}

// fault does one thing that goes wrong, and sees to it that it ends.
func (r *rig) fault() {
	at, d := r.rnd.IntN(3), within(r.rnd, 14*time.Second)
	lead := max(r.c.Leader(), 0)
	m := r.nodes[r.rnd.IntN(3)]
	switch k := r.rnd.IntN(24); {
	case k < 4:
		r.during("etcd's leader m"+strconv.Itoa(lead)+" is frozen", d, func() { r.c.Freeze(lead) }, func() { r.c.Thaw(lead) })
	case k < 8: // the pair that makes a deposed leader acknowledge renewals: it wakes up first, and is healed later
		d = 2*time.Second + within(r.rnd, 6*time.Second)
		r.during("etcd's leader m"+strconv.Itoa(lead)+" is frozen and cut off from its peers", d,
			func() { r.c.Freeze(lead); r.c.Isolate(lead, true) }, func() { r.c.Thaw(lead) })
		time.AfterFunc(d+within(r.rnd, 5*time.Second), func() { r.c.Isolate(lead, false) })
	case k < 10:
		ok := r.c.MoveLeader(at)
		r.logf("etcd's leader is moved from m%d to m%d: %v", lead, at, ok)
	case k < 12:
		r.during("m"+strconv.Itoa(at)+" crashes", d/2, func() { r.c.Crash(at) }, func() { r.c.Restart(at) })
	case k == 12:
		r.during("m"+strconv.Itoa(at)+" is cut off from its peers", d, func() { r.c.Isolate(at, true) }, func() { r.c.Isolate(at, false) })
	case k == 13:
		to := (at + 1) % 3
		r.during(fmt.Sprintf("nothing goes from m%d to m%d", at, to), d, func() { r.c.Cut(at, to, true) }, func() { r.c.Cut(at, to, false) })
	case k < 17:
		r.hold(m, at, d)
	case k == 17:
		r.logf("the connections of n%d to m%d break", m.i, at)
		r.c.Reset(m.i, at)
	case k == 18:
		r.during(fmt.Sprintf("n%d is slow", m.i), d, func() { r.c.Slow(m.i, within(r.rnd, 600*time.Millisecond)) }, func() { r.c.Slow(m.i, time.Millisecond) })
	case k == 19:
		d = within(r.rnd, 12*time.Second)
		r.logf("the clock of n%d jumps by %v", m.i, d)
		r.asleep(m)
		m.clock.jump(d)
		r.look()
	default:
		r.operate()
	}
}

// during begins a fault and ends it after d.
func (r *rig) during(what string, d time.Duration, begin, end func()) {
	r.logf("%s for %v", what, d.Round(time.Millisecond))
	begin()
	time.AfterFunc(d, end)
}

// hold has what goes between a machine and one member, or all, vanish for a while: there, back, or both.
func (r *rig) hold(m *node, at int, d time.Duration) {
	which, all := r.rnd.IntN(3), r.rnd.IntN(3) == 0
	set := func(on bool) {
		for i := range 3 {
			if i != at && !all {
				continue
			}
			if which != 1 {
				r.c.Hold(m.i, i, true, on)
			}
			if which != 0 {
				r.c.Hold(m.i, i, false, on)
			}
		}
	}
	r.during(fmt.Sprintf("%s vanishes between n%d and m%d (all members: %v)", []string{"what is sent", "what is answered", "everything"}[which], m.i, at, all), d,
		func() { set(true) }, func() { set(false) })
}

// operate does what somebody with etcdctl does: deletes a key of ours, ends a lease, compacts the history.
func (r *rig) operate() {
	keys := r.c.Keys("primacy/")
	if len(keys) == 0 {
		return
	}
	kv := keys[r.rnd.IntN(len(keys))]
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	var err error
	switch r.rnd.IntN(4) {
	case 0:
		r.logf("by hand: the history before revision %d is compacted", kv.ModRevision)
		err = r.c.Compact(ctx, kv.ModRevision)
	case 1:
		for _, other := range keys {
			if other.Lease == kv.Lease {
				r.pardon(string(other.Key), uint64(other.CreateRevision))
			}
		}
		r.logf("by hand: the lease %x of %s is revoked", kv.Lease, kv.Key)
		err = r.c.Revoke(ctx, kv.Lease)
	default:
		r.pardon(string(kv.Key), uint64(kv.CreateRevision))
		r.logf("by hand: the key %s is deleted", kv.Key)
		err = r.c.Delete(ctx, string(kv.Key))
	}
	if err != nil {
		r.logf("by hand: %v", err)
	}
}

// pardon excuses the term behind a claim's key.
func (r *rig) pardon(key string, token uint64) {
	name, _, _ := strings.Cut(strings.TrimPrefix(key, "primacy/"), "/")
	r.excuse(name, token)
}

// changeLeader changes etcd's leader in one of the ways that are part of everyday life.
func (r *rig) changeLeader() {
	lead := max(r.c.Leader(), 0)
	switch r.rnd.IntN(3) {
	case 0:
		r.logf("etcd's leader m%d is moved", lead)
		r.c.MoveLeader((lead + 1) % 3)
	case 1:
		r.during("etcd's leader crashes", time.Second, func() { r.c.Crash(lead) }, func() { r.c.Restart(lead) })
	case 2:
		r.during("etcd's leader is frozen", 1500*time.Millisecond, func() { r.c.Freeze(lead) }, func() { r.c.Thaw(lead) })
	}
	time.Sleep(10 * time.Second)
}
