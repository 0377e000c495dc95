//go:build linux

package torture

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/faults"
)

// processFaults are done to the processes of whoever leads, and to its claim.
func processFaults() []fault {
	return append(sharedFaults(func(f faults.Fault) bool { return !f.Links && !f.Leader }),
		fault{"frozen with a write on its way", false, freezeWithWrite},
		fault{"SIGKILL of a waiting candidate", false, killWaiter},
		fault{"SIGSTOP of a waiting candidate", false, freezeWaiter})
}

// sharedFaults returns those of internal/faults that are wanted, for the leader of a line.
func sharedFaults(wanted func(faults.Fault) bool) (all []fault) {
	for _, f := range faults.All() {
		if wanted(f) {
			all = append(all, fault{f.Name, false, func(s *torture, l *line, rng *rand.Rand) (string, error) {
				return injectShared(s, l, rng, f)
			}})
		}
	}
	return all
}

func injectShared(s *torture, l *line, rng *rand.Rand, f faults.Fault) (string, error) {
	c, token := l.leader()
	if c == nil || f.Servers && len(c.links) < 2 {
		return "", errMissed
	}
	t := &target{candidate: c, token: token, torture: s, rng: rng}
	defer t.release()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	begun := f.Begin(ctx, t)
	cancel()
	if begun {
		s.pause(f.Lasts(rng, l.ttl))
	}
	f.End(t)
	if !begun {
		return "", errMissed
	}
	if t.loses {
		s.next(l, token)
	}
	if t.roles != "" {
		return f.Name + ": " + t.roles, nil
	}
	return "", nil
}

// target is a leader as internal/faults sees it. The first fault of its processes locks them, so
// that no other fault reaches them until release.
type target struct {
	*candidate
	token   uint64
	torture *torture
	rng     *rand.Rand

	procs  []proc // the worker; or supervisor, guardian and command; nil until locked
	frozen []proc
	roles  string // which of them the fault reached
	loses  bool   // its term ends by this
}

// lock locks the leader's processes for this fault.
func (t *target) lock() bool {
	if t.procs != nil {
		return true
	}
	if !t.faultMu.TryLock() {
		return false
	}
	if t.kind == kindRun {
		if supervisor, guardian, command, ok := t.parts(); ok {
			t.procs = []proc{supervisor, guardian, command}
		}
	} else if p, ok := t.main(); ok {
		t.procs = []proc{p}
	}
	if t.procs == nil {
		t.faultMu.Unlock()
	}
	return t.procs != nil
}

func (t *target) release() {
	if t.procs != nil {
		t.faultMu.Unlock()
	}
}

func (t *target) TTL() time.Duration { return t.line.ttl }

func (t *target) Links() []*etcdtest.Proxy { return t.links }

// Kill signals one of the leader's processes; what is to end in order, its supervisor.
func (t *target) Kill(sig syscall.Signal) bool {
	if !t.lock() {
		return false
	}
	p := t.procs[t.rng.IntN(len(t.procs))]
	if sig != syscall.SIGKILL {
		p = t.procs[0]
	}
	send(sig, p)
	t.roles, t.loses = p.role, true
	return true
}

// Freeze stops the leader's worker, or one process of a `primacy run`, or past the ttl all three of
// it.
func (t *target) Freeze(pastTTL bool) bool {
	if !t.lock() {
		return false
	}
	choice := t.rng.IntN(4)
	if choice == 3 && t.kind == kindRun && pastTTL {
		t.frozen, t.roles = t.procs, "supervisor, guardian and command"
	} else {
		t.frozen = []proc{t.procs[choice%len(t.procs)]}
		t.roles = t.frozen[0].role
	}
	send(syscall.SIGSTOP, t.frozen...)
	return true
}

// Thaw continues what was frozen, a whole `primacy run` from the command on. The command is dead by
// then if its deadline is over: the kernel has woken its guardian.
func (t *target) Thaw() {
	for _, p := range slices.Backward(t.frozen) {
		send(syscall.SIGCONT, p)
	}
}

// AskToResign is not used: transferLane asks leaders.
func (t *target) AskToResign(context.Context) bool { return false }

func (t *target) RemoveClaim(context.Context) bool { return t.operate(false) }
func (t *target) EndLease(context.Context) bool    { return t.operate(true) }

func (t *target) operate(lease bool) bool {
	t.loses = t.torture.remove(t.line.claim(t.token), lease) == nil
	return t.loses
}

// send signals processes that may have ended meanwhile.
func send(sig syscall.Signal, procs ...proc) {
	for _, p := range procs {
		if !p.dead() {
			_ = syscall.Kill(p.pid, sig)
		}
	}
}

// next waits for another term, not for ever.
func (s *torture) next(l *line, after uint64) {
	for end := boottime.Now() + 2*l.ttl; boottime.Now() < end && !s.over(); time.Sleep(pollEvery) {
		if _, token := l.leader(); token > after {
			return
		}
	}
}

// freezeWithWrite keeps a write of the leader on its way, freezes the leader for longer than its
// term, and lets the write arrive when others have written: what no check can prevent, and a fence
// does.
func freezeWithWrite(s *torture, l *line, rng *rand.Rand) (string, error) {
	c, token := l.leader()
	if c == nil {
		return "", errMissed
	}
	t := &target{candidate: c, token: token, torture: s, rng: rng}
	if !t.lock() {
		return "", errMissed
	}
	defer t.release()
	h := l.sink.hold(t.id)
	defer l.sink.let(t.id, h)
	select {
	case <-h.caught:
	case <-time.After(time.Second):
		return "", errMissed
	}
	l.mu.Lock()
	l.held[h.token] = true
	l.mu.Unlock()
	p := t.procs[0]
	send(syscall.SIGSTOP, p)
	defer send(syscall.SIGCONT, p)
	time.Sleep(l.ttl)
	s.next(l, h.token)
	time.Sleep(between(rng, 0, l.ttl/3))
	return "", nil
}

func (l *line) takeWaiter(rng *rand.Rand) (*candidate, proc, error) {
	leader, _ := l.leader()
	for _, i := range rng.Perm(len(l.candidates)) {
		c := l.candidates[i]
		if c == leader || !c.faultMu.TryLock() {
			continue
		}
		if p, ok := c.main(); ok {
			return c, p, nil
		}
		c.faultMu.Unlock()
	}
	return nil, proc{}, errMissed
}

func killWaiter(_ *torture, l *line, rng *rand.Rand) (string, error) {
	c, p, err := l.takeWaiter(rng)
	if err != nil {
		return "", err
	}
	defer c.faultMu.Unlock()
	send(syscall.SIGKILL, p)
	return "", nil
}

// freezeWaiter freezes one that waits for longer than its lease lives, and has the leader's claim
// go meanwhile: it may win while it is frozen.
func freezeWaiter(s *torture, l *line, rng *rand.Rand) (string, error) {
	c, p, err := l.takeWaiter(rng)
	if err != nil {
		return "", err
	}
	defer c.faultMu.Unlock()
	send(syscall.SIGSTOP, p)
	defer send(syscall.SIGCONT, p)
	time.Sleep(between(rng, 0, l.ttl/2))
	if _, token := l.leader(); token != 0 {
		_ = s.remove(l.claim(token), false)
	}
	time.Sleep(between(rng, l.ttl/3, l.ttl*3/2))
	return "", nil
}

// removed notes that from now on the store lets another lead, whether the holder has heard of it or
// not: no promise covers what others do to its claim.
func (s *torture) removed(claim uint64) {
	for _, l := range s.lines { // these are revisions of the whole cluster: it is of one line
		l.mu.Lock()
		l.removals = append(l.removals, late{token: claim, thaw: boottime.Now()})
		l.mu.Unlock()
	}
}

// remove takes the key that was created with that revision out of etcd, or the lease it is attached
// to.
func (s *torture) remove(claim uint64, lease bool) error {
	var all struct {
		Kvs []struct {
			Key    string `json:"key"`
			Create string `json:"create_revision"`
			Lease  string `json:"lease"`
		} `json:"kvs"`
	}
	every := base64.StdEncoding.EncodeToString([]byte{0})
	var errs []error
	for _, m := range s.cluster.Members {
		if err := m.Post("/v3/kv/range", map[string]string{"key": every, "range_end": every}, &all); err != nil {
			errs = append(errs, err)
			continue
		}
		for _, kv := range all.Kvs {
			if kv.Create != fmt.Sprint(claim) {
				continue
			}
			s.removed(claim)
			if lease && kv.Lease != "" {
				return m.Post("/v3/lease/revoke", map[string]string{"ID": kv.Lease}, nil)
			}
			return m.Post("/v3/kv/deleterange", map[string]string{"key": kv.Key}, nil)
		}
		return errMissed // its term is over
	}
	return errors.Join(errs...)
}
