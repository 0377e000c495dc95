package zkstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// Renew proves that the lease lives for its ttl from the call.
//
// A read proves nothing: a follower that is cut off from its leader answers reads for seconds, and
// a leader that was frozen does when it wakes, while the others have ended the session. A write
// goes through the log of a leader that has a quorum and there finds the session, so its answer
// proves that the session had not ended. But it does not restart the timeout: only the leader times
// sessions, and of one that comes through a follower it hears in the follower's answers to its
// pings, two of which it sends in a tick (Leader.lead, Learner.ping, LearnerHandler.run). So:
//
//   - Let A, B and C be writes of the session on one connection, so on one server and under one
//     leader: a server that changes its leader closes its clients' connections. B is sent a gap
//     after the answer of A, C a gap after that of B: a little more than half a tick ([gap]).
//   - Since the follower had A, its next answer to a ping carries the session (unless one did
//     already, after A).
//   - Between the answer of A and B's commit at the leader half a tick has passed, so the leader
//     has queued a ping for the follower, on the same queue as that commit and before it. So the
//     follower had the ping, and answered it, before we had the answer of B, so before it passed C
//     on, on the same connection to the leader.
//   - The gap before C is for what the gap before B may miss. A leader that was stopped between A
//     and B may commit B before its pinging thread has its turn. And the follower may lose A: it
//     notes the session in a table that it may be sending just then
//     (LearnerSessionTracker.snapshot). Then it has noted B in the next, and the ping after B
//     carries that. (The simulator's model finds false proofs with C at once behind B, and none so;
//     see sim/zk.go.)
//   - So when the leader took C into its log it had been touched by the session after A was SENT,
//     and ends it at (sending of A) + timeout or later: it rounds up to its tick.
//   - C was committed by a quorum, so up to then no later leader had begun; a later one gives every
//     session its full timeout anew.
//
// So after C the lease lives until (sending of A) + timeout, and the timeout is chosen so much
// longer than the ttl that A may be as old as two renewals. Both are times on the leader's clock,
// so the age of A, which ours tells, counts for more ([lasts]). Asking for a session, by a new
// connection, is such an A without the ping: the leader itself touches the session before it
// answers (Leader.revalidateSession; PrepRequestProcessor for a new one). A leader that we are
// connected to, or a server that is alone, is touched by each write.
//
// What it rests on: a leader that answers writes sends at least one of the two pings of a tick. A
// leader that is stopped as a whole does not answer; one whose pinging thread alone gets no
// processor for a tick, while the threads that serve writes do, breaks it. An observer that follows
// a follower (observerMasterPort) hears pings one hop later and is not covered: connect to voting
// members.
//
// Where no A is young enough, Renew makes A, B and C itself, which takes it two gaps.
func (l *lease) Renew(ctx context.Context) error {
	called := now()
	if err := l.check(ctx); err != nil {
		return err
	}
	select {
	case l.renewal.busy <- struct{}{}:
		defer func() { <-l.renewal.busy }()
	case <-ctx.Done():
		return ctx.Err()
	}
	l.timer.Reset(l.patience())
	return l.renewal.prove(ctx, called)
}

// renewal proves that a lease lives.
type renewal struct {
	tree
	node string // which it writes to
	ttl  time.Duration
	tick time.Duration

	busy   chan struct{} // holds one while a renewal is under way
	writes []write       // of late, on the present connection. Guarded by busy
}

// write is a write of the session that was answered, all of it on one connection.
type write struct {
	gen            uint64
	sent, answered time.Duration
}

// prove writes until it is proved that the lease lives for its ttl from called on.
func (r *renewal) prove(ctx context.Context, called time.Duration) error {
	for {
		w, err := r.write(ctx)
		if err != nil {
			return err
		}
		gen, began, timeout := r.generation()
		if w.gen == 0 || w.gen != gen {
			r.writes = nil
			continue // the connection changed under it: it is no part of a chain, but the new connection is one's begin
		}
		r.writes = append(trim(r.writes, w, timeout), w)
		if lasts(called-r.proved(w, began), timeout-r.ttl) {
			return nil
		}
		if err := r.wait(ctx, r.untilNext(called, timeout)); err != nil {
			return err
		}
	}
}

// write writes to the lease's beat node.
func (r *renewal) write(ctx context.Context) (write, error) {
	before, _, _ := r.generation()
	if _, err := r.ready(ctx); err != nil {
		return write{}, err
	}
	sent := now()
	_, err := r.set(ctx, r.node, nil, -1)
	if errors.Is(err, errNoNode) { // whoever ends a lease deletes it, with the others
		r.end(driver.ErrGone, true)
		return write{}, driver.ErrGone
	}
	if err != nil {
		return write{}, err
	}
	w := write{sent: sent, answered: now()}
	if after, _, _ := r.generation(); after == before {
		w.gen = after
	}
	return w, nil
}

// trim drops what is of another connection or too old to be of use.
func trim(chain []write, last write, timeout time.Duration) []write {
	var kept []write
	for _, w := range chain {
		if w.gen == last.gen && last.sent-w.sent < timeout {
			kept = append(kept, w)
		}
	}
	return kept[max(0, len(kept)-64):]
}

// lasts says whether what was proved for a moment of that age still leaves the ttl: the age is
// counted by our clock and the slack by the leader's, which may be 10 % faster.
func lasts(age, slack time.Duration) bool { return age*112/100 <= slack }

// proved returns when that was sent of which the answer of c proves that the session's timeout
// began after it.
func (r *renewal) proved(c write, began time.Duration) time.Duration {
	sent := began
	for _, b := range r.writes {
		if c.sent-b.answered < r.gap() {
			continue
		}
		for _, a := range r.writes {
			if b.sent-a.answered >= r.gap() {
				sent = max(sent, a.sent)
			}
		}
	}
	return sent
}

func (r *renewal) gap() time.Duration { return gap(r.tick) }

// gap is how long after the answer of one write of a chain the next is sent, so that a ping lies
// between them: the leader sends one each half tick of its own clock.
func gap(tick time.Duration) time.Duration { return tick/2*112/100 + 100*time.Millisecond }

// untilNext returns how long to wait before the next write, for the sooner proof: it is C where
// there is a B already, otherwise B.
func (r *renewal) untilNext(called, timeout time.Duration) time.Duration {
	last := r.writes[len(r.writes)-1].answered
	asB, asC := r.gap(), timeout
	for _, a := range r.writes {
		if !lasts(called-a.sent, timeout-r.ttl) {
			continue // too old to be A
		}
		asB = min(asB, a.answered+r.gap()-last)
		for _, b := range r.writes {
			if b.sent-a.answered >= r.gap() {
				asC = min(asC, b.answered+r.gap()-last)
			}
		}
	}
	if asC < timeout {
		return max(asC, 0)
	}
	return max(asB, 0)
}

func (r *renewal) wait(ctx context.Context, d time.Duration) error {
	if err := storeutil.WaitFor(ctx, d, r.ctx.Done()); err != nil {
		return fmt.Errorf("not enough time to prove that the session lives: %w", err)
	}
	return r.reason()
}

// sessionFor returns the session timeout that a ttl needs: renewals come every fifth of a ttl, so
// the A of a proof is up to two of them old, which is half a ttl by the leader's clock. So none may
// be left out (Caps.ChainedRenew): the next one would find its A too old, and has no time to make
// its own proof. Where a fifth is little more than a gap or less, A may be two gaps older.
func sessionFor(ttl, tick time.Duration) time.Duration {
	if ttl >= 6*gap(tick) {
		return (ttl*3 + 1) / 2
	}
	return min((ttl*3+1)/2+gap(tick)*9/4, 9*gap(tick))
}

// silenceFor returns for how long a server may say nothing to a lease of that ttl before its
// session moves. The first renewal that it leaves unanswered comes a fifth of the ttl after the
// last that counts; the connection is lost a quarter of the ttl after that at the latest (see
// leaveSilent), and one more server that is silent costs another fifth. So a term, which has eight
// tenths, bears two of them. It is no shorter, for a server may only be busy: a renewal has failed
// after a tenth of the ttl, and one that may answer the next is given twice that. And it is two
// seconds at least: in less a server that collects its garbage, or shares its machine, would have
// all its sessions move, which makes it busier. From a ttl of 10 s on that changes nothing; a term
// below that bears one silent server, and below 4.5 s none.
func silenceFor(ttl time.Duration) time.Duration { return max(ttl/5, leastSilence) }

const leastSilence = 2 * time.Second

// ttlWithin undoes sessionFor: the largest ttl that a timeout carries.
func ttlWithin(timeout, tick time.Duration) time.Duration {
	if ttl := timeout * 2 / 3; ttl >= 6*gap(tick) {
		return ttl
	}
	return (timeout - gap(tick)*9/4) * 2 / 3
}
