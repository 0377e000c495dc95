package redlockstore

import (
	"context"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/redistest"
)

// alone is a lease over one server, with a claim that nothing was tried for yet.
func alone(t *testing.T) (*redistest.Server, *lease, *claim) {
	t.Helper()
	r := redistest.Start(t, redistest.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := Open(ctx, Config{Addrs: []string{r.Addr()}, Guard: -1, MaxTTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	granted, err := s.Grant(ctx, "a", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	l := granted.(*lease)
	all, _, err := l.prepare([]driver.Claim{{Name: "x", ID: "1"}})
	if err != nil {
		t.Fatal(err)
	}
	return r, l, all[0]
}

// A server that was started a moment ago may have lost the keys of somebody who relies on them: its
// answers make no majority, neither for who tries nor for who renews.
func TestAServerThatIsTooYoungHasNoVoice(t *testing.T) {
	t.Parallel()
	s := &Store{quorum: 2}
	for at := range 3 {
		s.servers = append(s.servers, &server{s: s, at: at})
	}
	s.servers[1].counts = boottime.Now() + time.Hour
	n, try := newCount(s, 1), tally{}
	for at, enough := range []bool{false, false, true} {
		n.add(values{at: at, got: []any{"own"}}, 0)
		try.add(s, values{at: at, got: []any{"own", int64(1000)}}, 0)
		if n.enough() != enough || try.outcome(s, n).held != enough {
			t.Errorf("after %d servers, of which the second one is too young: renewed %v, held %v, want %v",
				at+1, n.enough(), try.outcome(s, n).held, enough)
		}
	}
	if n.own[0] != 2 || try.own != 2 {
		t.Errorf("%d and %d voices, want two of three", n.own[0], try.own)
	}
}

// A call that was given up may have set its key, or set it later: who gives the claim up must not
// believe that nothing stands there.
func TestACallWithoutAnAnswerMayHaveSetItsKey(t *testing.T) {
	t.Parallel()
	r, l, c := alone(t)
	l.mu.Lock()
	a := c.newAttemptLocked()
	l.mu.Unlock()
	r.Stop()
	defer r.Cont()
	given := boottime.Now()
	if got, err := l.enterAt(l.s.servers[0], []*attempt{a}); err == nil {
		t.Fatalf("a frozen server answers %v", got)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if st := a.on[0]; !st.set || st.late <= given+l.limit {
		t.Errorf("it is believed to be set: %v, and may be until %v after it was sent; want true and more than %v",
			st.set, st.late-given, l.limit)
	}
}

// A key that could not be deleted stands until it expires: until then the release is not done.
func TestARemovalIsNotGivenUpBeforeTheKeyHasExpired(t *testing.T) {
	t.Parallel()
	_, l, c := alone(t)
	l.s.Close() // nothing is deleted any more
	l.mu.Lock()
	a := c.newAttemptLocked()
	a.on[0].set = true
	given := boottime.Now()
	a.giveUpLocked()
	l.mu.Unlock()
	v := l.s.servers[0]
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.removals) != 1 || v.removals[0].until < given+l.ttl*10/9 {
		t.Errorf("removals = %+v, want one that is tried for longer than the ttl, also by a clock that is slow",
			v.removals)
	}
}

// The keys' ttls may begin as early as the call: a lease that counted from the answer would outlive
// them.
func TestALeaseCountsFromTheCallOfItsRenewal(t *testing.T) {
	t.Parallel()
	r, l, _ := alone(t)
	begun := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.renewals
	}
	for end := time.Now().Add(time.Minute); ; {
		before, done := begun(), make(chan error, 1)
		r.Stop()
		go func() { done <- l.Renew(context.Background()) }()
		for begun() == before {
			time.Sleep(time.Millisecond)
		}
		underWay := boottime.Now()
		r.Cont()
		if err := <-done; err != nil && time.Now().Before(end) {
			continue // a busy machine: the call had its time
		} else if err != nil {
			t.Fatal(err)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.renewed > underWay {
			t.Errorf("it counts from %v after its call", l.renewed-underWay)
		}
		return
	}
}

// The answers came when the lease was over by this machine's clock, after a pause: its claims hold
// no more.
func TestAClaimOfALeaseThatIsOverDoesNotHold(t *testing.T) {
	t.Parallel()
	_, l, c := alone(t)
	l.mu.Lock()
	l.renewed = boottime.Now() - l.ttl
	l.mu.Unlock()
	if got := l.enter(t.Context(), []*claim{c}); got[0].held || c.held {
		t.Errorf("enter = %+v, want it not held", got[0])
	}
}

// An operator has ended the lease: a call of its owner's that comes later sets nothing.
func TestARevokedLeaseEntersNothing(t *testing.T) {
	t.Parallel()
	r, l, c := alone(t)
	r.Do("SET", l.s.revoked(l.id), "1")
	l.mu.Lock()
	a := c.newAttemptLocked()
	l.mu.Unlock()
	got, err := l.enterAt(l.s.servers[0], []*attempt{a})
	if err != nil || len(got) == 0 || got[0] != "revoked" || r.Do("EXISTS", l.s.key("x")) != int64(0) {
		t.Errorf("enter = %v, %v, want that the lease is revoked, and no key", got, err)
	}
}

// An update that was held up must not bring its old value back.
func TestALateUpdateBringsNoOldValueBack(t *testing.T) {
	t.Parallel()
	r, l, c := alone(t)
	if got := l.enter(t.Context(), []*claim{c}); !got[0].held {
		t.Fatalf("enter = %+v", got[0])
	}
	texts := []string{}
	for _, value := range []string{"old", "new"} {
		l.mu.Lock()
		c.Value = []byte(value)
		c.updates++
		texts = append(texts, c.cur.valueLocked())
		l.mu.Unlock()
	}
	v, key, channel := l.s.servers[0], l.s.key("x"), l.s.channel("x")
	for _, text := range []string{texts[1], texts[0]} {
		if _, err := v.call(update, time.Minute, []string{key}, text, channel); err != nil {
			t.Fatal(err)
		}
	}
	if got := r.Do("GET", key); got != texts[1] {
		t.Errorf("the key holds %q, want the later value %q", got, texts[1])
	}
}
