package primacy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// rule is one term as the judge of the simulated cluster knows it.
type rule struct {
	term    *Term
	m       *node
	session string        // its lease, as keys end
	at      time.Duration // when it was won
	over    bool          // Check said no once
	working bool
	slept   bool // its machine was suspended under it, and nothing can stop work that does not run
	lost    bool // it ended before its work was done
}

func (w *rule) String() string { return fmt.Sprintf("n%d under token %d", w.m.i, w.term.Token()) }

// hand is something that an operator did to a session: to one claim of it, or to all (token 0).
type hand struct {
	name  string
	token uint64
	at    time.Duration
}

// byHand notes that an operator is about to delete a key of ours. The store breaks its promise there, and news of it needs time.
func (r *rig) byHand(kv *mvccpb.KeyValue) {
	name, session, _ := strings.Cut(strings.TrimPrefix(string(kv.Key), "primacy/"), "/")
	h := hand{name, uint64(kv.CreateRevision), r.now()}
	if name == "@session" {
		h.token = 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hands[session] = append(r.hands[session], h)
	r.lineLocked("by hand: the key %s (token %d) is deleted", kv.Key, kv.CreateRevision)
}

// excusedLocked says whether an operator took the term away, or its whole session, at or after the time it was won.
func (r *rig) excusedLocked(w *rule) bool {
	for _, h := range r.hands[w.session] {
		if h.name == w.term.Name() && h.token == uint64(w.term.Token()) || h.token == 0 && h.at > w.at-10*time.Second {
			return true
		}
	}
	return false
}

// lost is called when a term ended before its work was done. Only an operator can take a claim away from under it.
func (r *rig) lost(w *rule) {
	cause := context.Cause(w.term.Context())
	r.logf("n%d loses %s (token %d): %v", w.m.i, w.term.Name(), w.term.Token(), cause)
	r.mu.Lock()
	defer r.mu.Unlock()
	w.lost = true
	if errors.Is(cause, ErrDeposed) && !r.excusedLocked(w) {
		r.failLocked("%s: the claim of %v was taken away though no operator did it", w.term.Name(), w)
	}
}

func (r *rig) won(m *node, t *Term) *rule {
	r.logf("n%d leads %s under token %d", m.i, t.Name(), t.Token())
	r.mu.Lock()
	w := &rule{term: t, m: m, working: true, session: t.c.l.dl.ID(), at: r.now()}
	for _, old := range r.reigns[t.Name()] {
		if old.term.Token() >= t.Token() && !r.excusedLocked(w) && t.Check() == nil {
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
			if r.excusedLocked(w) {
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

// deposed is the fault that makes a leader of etcd acknowledge renewals though another was elected: it is frozen and cut off from its
// peers, and wakes up before the cut is healed. Whoever leads renews there, at first and when it wakes up.
func (r *rig) deposed() {
	m := r.holder()
	r.c.MoveLeader(m.i)
	time.Sleep(4 * time.Second)
	at, d := max(r.c.Leader(), 0), 2*time.Second+within(r.rnd, 6*time.Second)
	set := func(on bool) {
		for i := range 3 {
			if i != at && !r.own {
				r.c.Hold(m.i, i, true, on)
			}
		}
	}
	r.during(fmt.Sprintf("etcd's leader m%d is frozen and cut off from its peers, n%d reaches no other,", at, m.i), d,
		func() { r.c.Freeze(at); r.c.Isolate(at, true); set(true) }, func() { r.c.Thaw(at) })
	time.Sleep(d + time.Second + within(r.rnd, 4*time.Second))
	r.logf("m%d is no longer cut off", at)
	r.c.Isolate(at, false)
	set(false)
	time.Sleep(within(r.rnd, 12*time.Second))
}

// woken freezes a leader of etcd for longer than leases last. As it wakes up it ends those that its clock has seen run out.
func (r *rig) woken() {
	at, d := max(r.c.Leader(), 0), 7*time.Second+within(r.rnd, 8*time.Second)
	if r.own { // everybody but who knows only this member goes on
		r.c.MoveLeader((r.holder().i + 1) % 3)
		time.Sleep(4 * time.Second)
		at = max(r.c.Leader(), 0)
	}
	r.during(fmt.Sprintf("etcd's leader m%d is frozen", at), d, func() { r.c.Freeze(at) }, func() { r.c.Thaw(at) })
	time.Sleep(d + within(r.rnd, 6*time.Second))
}

// stragglers freezes members one after another: what lies before them is carried out when they wake up, by then given up or out of date.
func (r *rig) stragglers() {
	for range 4 {
		at, d := r.rnd.IntN(3), 3*time.Second+within(r.rnd, 6*time.Second)
		r.during(fmt.Sprintf("m%d is frozen", at), d, func() { r.c.Freeze(at) }, func() { r.c.Thaw(at) })
		time.Sleep(d - time.Second + within(r.rnd, 3*time.Second))
	}
}

// holder is a machine that leads something, or any.
func (r *rig) holder() *node {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range r.names {
		all := r.reigns[name]
		if n := len(all); n > 0 && all[n-1].working {
			return all[n-1].m
		}
	}
	return r.nodes[r.rnd.IntN(3)]
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
	r.tally.faults++
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
		r.logf("by hand: the lease %x is revoked", kv.Lease)
		for _, other := range keys {
			if other.Lease == kv.Lease {
				r.byHand(other)
			}
		}
		err = r.c.Revoke(ctx, kv.Lease)
	default:
		r.byHand(kv)
		err = r.c.Delete(ctx, string(kv.Key))
	}
	if err != nil {
		r.logf("by hand: %v", err)
	}
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
