package primacy

import (
	"context"
	"fmt"
	"strconv"
	"time"
)

// deposed is the fault that makes a leader of etcd acknowledge renewals though another was elected:
// it is frozen and cut off from its peers, and wakes up before the cut is healed. Whoever leads
// renews there, at first and when it wakes up.
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

// woken freezes a leader of etcd for longer than leases last. As it wakes up it ends those that its
// clock has seen run out.
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

// stragglers freezes a member, mostly etcd's leader, and has everybody stand for names of their own
// just then, for a moment only. What was sent before it slept may be carried out when it wakes up.
// By then each claim has been given up, and must not enter any more.
func (r *rig) stragglers() {
	for range 3 {
		at, d := max(r.c.Leader(), 0), 500*time.Millisecond+within(r.rnd, 6*time.Second)
		if r.rnd.IntN(3) == 0 {
			at = r.rnd.IntN(3)
		}
		r.during(fmt.Sprintf("m%d is frozen", at), d, func() { r.c.Freeze(at) }, func() { r.c.Thaw(at) })
		for _, m := range r.nodes {
			wait, limit := within(r.rnd, 500*time.Millisecond), within(r.rnd, 1500*time.Millisecond)
			go func() {
				time.Sleep(wait)
				ctx, cancel := context.WithTimeout(context.Background(), limit)
				defer cancel()
				if term, err := m.sess.Election(fmt.Sprintf("z%d", m.i)).Campaign(ctx, nil); err == nil {
					_ = term.Resign(context.Background())
				}
			}()
		}
		time.Sleep(d + 8*time.Second)
		for _, kv := range r.c.Keys("primacy/z") {
			r.failf("a claim that was given up stands: %s, token %d", kv.Key, kv.CreateRevision)
		}
	}
}

// holder is a machine that leads something, or any.
func (r *rig) holder() *node {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range r.names {
		all := r.terms[name]
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
		r.during("etcd's leader m"+strconv.Itoa(lead)+" is frozen", d, func() { r.c.Freeze(lead) }, func() {
			r.c.Thaw(lead)
		})
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
		r.during("m"+strconv.Itoa(at)+" is cut off from its peers", d, func() { r.c.Isolate(at, true) }, func() {
			r.c.Isolate(at, false)
		})
	case k == 13:
		to := (at + 1) % 3
		r.during(fmt.Sprintf("nothing goes from m%d to m%d", at, to), d, func() { r.c.Cut(at, to, true) }, func() {
			r.c.Cut(at, to, false)
		})
	case k < 17:
		r.hold(m, at, d)
	case k == 17:
		r.logf("the connections of n%d to m%d break", m.i, at)
		r.c.Reset(m.i, at)
	case k == 18:
		r.during(fmt.Sprintf("n%d is slow", m.i), d, func() {
			r.c.Slow(m.i, within(r.rnd, 600*time.Millisecond))
		}, func() { r.c.Slow(m.i, time.Millisecond) })
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

// hold has what goes between a machine and one member, or all, vanish for a while: there, back, or
// both.
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
	r.during(fmt.Sprintf("%s vanishes between n%d and m%d (all members: %v)",
		[]string{"what is sent", "what is answered", "everything"}[which], m.i, at, all), d,
		func() { set(true) }, func() { set(false) })
}

// operate does what somebody with etcdctl does: deletes a key of ours, ends a lease, compacts the
// history.
func (r *rig) operate() {
	keys := r.c.Keys("primacy/")
	if len(keys) == 0 {
		return
	}
	kv := keys[r.rnd.IntN(len(keys))]
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	var err error
	var done []func()
	switch r.rnd.IntN(4) {
	case 0:
		r.logf("by hand: the history before revision %d is compacted", kv.ModRevision)
		err = r.c.Compact(ctx, kv.ModRevision)
	case 1:
		r.logf("by hand: the lease %x is revoked", kv.Lease)
		for _, other := range keys {
			if other.Lease == kv.Lease {
				done = append(done, r.byHand(other, tookLease))
			}
		}
		err = r.c.Revoke(ctx, kv.Lease)
	default:
		done = append(done, r.byHand(kv, tookClaim))
		err = r.c.Delete(ctx, string(kv.Key), kv.CreateRevision)
	}
	if err != nil {
		r.logf("by hand: %v", err) // it may still be done
		return
	}
	for _, done := range done {
		done()
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
		r.during("etcd's leader is frozen", 1500*time.Millisecond, func() { r.c.Freeze(lead) }, func() {
			r.c.Thaw(lead)
		})
	}
	time.Sleep(10 * time.Second)
}
