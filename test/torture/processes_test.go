//go:build linux

package torture

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
)

// processHarms are done to the processes of whoever leads, and to its claim.
func processHarms() []harm {
	return []harm{
		{"SIGKILL", false, killLeader},
		{"SIGSTOP, longer than the ttl", false, freezeLong},
		{"SIGSTOP, shorter than the ttl", false, freezeShort},
		{"frozen with a write on its way", false, freezeWithWrite},
		{"SIGKILL of a waiting candidate", false, killWaiter},
		{"SIGSTOP of a waiting candidate", false, freezeWaiter},
		{"claim deleted by an operator", false, deleteClaim},
		{"lease revoked by an operator", false, revokeLease},
	}
}

// target is a leader whose processes one fault has for itself.
type target struct {
	*candidate
	token uint64
	procs []proc // the worker; or supervisor, guardian and command
}

// take returns the leader for one fault, which gives it back with struck.Unlock.
func (l *line) take() (*target, error) {
	c, token := l.leader()
	if c == nil || !c.struck.TryLock() {
		return nil, errMissed
	}
	t := &target{candidate: c, token: token}
	if c.kind == kindRun {
		supervisor, guardian, command, ok := c.parts()
		t.procs = []proc{supervisor, guardian, command}
		if ok {
			return t, nil
		}
	} else if p, ok := c.main(); ok {
		t.procs = []proc{p}
		return t, nil
	}
	c.struck.Unlock()
	return nil, errMissed
}

// send signals processes that may have ended meanwhile.
func send(sig syscall.Signal, procs ...proc) {
	for _, p := range procs {
		if !p.dead() {
			_ = syscall.Kill(p.pid, sig)
		}
	}
}

func killLeader(s *stage, l *line, rng *rand.Rand) (string, error) {
	t, err := l.take()
	if err != nil {
		return "", err
	}
	defer t.struck.Unlock()
	p := t.procs[rng.IntN(len(t.procs))]
	send(syscall.SIGKILL, p)
	s.next(l, t.token)
	return "SIGKILL of the leader's " + p.role, nil
}

// next waits for another term, not for ever.
func (s *stage) next(l *line, after uint64) {
	for end := boottime.Now() + 2*l.ttl; boottime.Now() < end && !s.over(); time.Sleep(pollEvery) {
		if _, token := l.leader(); token > after {
			return
		}
	}
}

// freezeLong freezes the leader's worker, or one process of a `primacy run`, or all three of it, until well after the term.
func freezeLong(s *stage, l *line, rng *rand.Rand) (string, error) {
	t, err := l.take()
	if err != nil {
		return "", err
	}
	defer t.struck.Unlock()
	d := between(rng, l.ttl*11/10, l.ttl*2)
	choice := rng.IntN(4)
	if choice == 3 && t.kind == kindRun {
		s.freezeRun(t, d)
		return "SIGSTOP of supervisor, guardian and command", nil
	}
	p := t.procs[choice%len(t.procs)]
	send(syscall.SIGSTOP, p)
	time.Sleep(d)
	send(syscall.SIGCONT, p)
	return "SIGSTOP of the leader's " + p.role + ", longer than the ttl", nil
}

// freezeRun freezes all of a `primacy run` and thaws the command first. Nothing in it can keep the command from acting in the
// moment of the thaw: these acts are counted, and are not held against the promise.
func (s *stage) freezeRun(t *target, d time.Duration) {
	send(syscall.SIGSTOP, t.procs...)
	time.Sleep(d)
	t.line.mu.Lock()
	t.line.lates = append(t.line.lates, late{token: t.token, thaw: boottime.Now()})
	t.line.mu.Unlock()
	for i := range t.procs {
		send(syscall.SIGCONT, t.procs[len(t.procs)-1-i])
	}
}

func freezeShort(_ *stage, l *line, rng *rand.Rand) (string, error) {
	t, err := l.take()
	if err != nil {
		return "", err
	}
	defer t.struck.Unlock()
	p := t.procs[rng.IntN(len(t.procs))]
	for range 1 + rng.IntN(3) {
		send(syscall.SIGSTOP, p)
		time.Sleep(between(rng, l.ttl/10, l.ttl*8/10))
		send(syscall.SIGCONT, p)
		time.Sleep(between(rng, 0, l.ttl/5))
	}
	return "SIGSTOP of the leader's " + p.role + ", shorter than the ttl", nil
}

// freezeWithWrite keeps a write of the leader on its way, freezes the leader for longer than its term, and lets the write arrive
// when others have written: what no check can prevent, and a fence does.
func freezeWithWrite(s *stage, l *line, rng *rand.Rand) (string, error) {
	t, err := l.take()
	if err != nil {
		return "", err
	}
	defer t.struck.Unlock()
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
		if c == leader || !c.struck.TryLock() {
			continue
		}
		if p, ok := c.main(); ok {
			return c, p, nil
		}
		c.struck.Unlock()
	}
	return nil, proc{}, errMissed
}

func killWaiter(_ *stage, l *line, rng *rand.Rand) (string, error) {
	c, p, err := l.takeWaiter(rng)
	if err != nil {
		return "", err
	}
	defer c.struck.Unlock()
	send(syscall.SIGKILL, p)
	return "", nil
}

// freezeWaiter freezes one that waits for longer than its lease lives, and has the leader's claim go meanwhile: it may win
// while it is frozen.
func freezeWaiter(s *stage, l *line, rng *rand.Rand) (string, error) {
	c, p, err := l.takeWaiter(rng)
	if err != nil {
		return "", err
	}
	defer c.struck.Unlock()
	send(syscall.SIGSTOP, p)
	defer send(syscall.SIGCONT, p)
	time.Sleep(between(rng, 0, l.ttl/2))
	if _, token := l.leader(); token != 0 {
		_ = s.remove(l.claim(token), false)
	}
	time.Sleep(between(rng, l.ttl/3, l.ttl*3/2))
	return "", nil
}

func deleteClaim(s *stage, l *line, _ *rand.Rand) (string, error) { return "", s.operate(l, false) }
func revokeLease(s *stage, l *line, _ *rand.Rand) (string, error) { return "", s.operate(l, true) }

func (s *stage) operate(l *line, lease bool) error {
	_, token := l.leader()
	if token == 0 {
		return errMissed
	}
	if err := s.remove(l.claim(token), lease); err != nil {
		return err
	}
	s.next(l, token)
	return nil
}

// removed notes that from now on the store lets another lead, whether the holder has heard of it or not: no promise covers what
// others do to its claim.
func (s *stage) removed(claim uint64) {
	for _, l := range s.lines { // these are revisions of the whole cluster: it is of one line
		l.mu.Lock()
		l.removals = append(l.removals, late{token: claim, thaw: boottime.Now()})
		l.mu.Unlock()
	}
}

// remove takes the key that was created with that revision out of etcd, or the lease it is attached to.
func (s *stage) remove(claim uint64, lease bool) error {
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
