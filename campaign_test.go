package primacy

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
)

func TestCampaignObeysItsContextAndLeavesNoTrace(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s1, s2 := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
		t1 := b.lead(s1, "n")
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		at := b.clock()
		_, err := s2.Election("n").Campaign(ctx, nil)
		if !errors.Is(err, context.DeadlineExceeded) || b.clock()-at != 3*time.Second {
			t.Fatalf("got %v after %v", err, b.clock()-at)
		}
		synctest.Wait()
		if line, _ := b.store.Line(context.Background(), "n"); len(line.Waiters) != 0 {
			t.Errorf("left in the line: %+v", line.Waiters)
		}
		if t1.Check() != nil {
			t.Errorf("the leader was hurt: %v", t1.Check())
		}
	})
}

// G4: a bogus "what the store said last".
func TestAnInterruptedPauseIsNotAnAnswerOfTheStore(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		var waits, claims atomic.Int32
		h := &hooked{Store: b.store}
		followed := make(chan driver.Place, 10)
		h.follow = func(l driver.Lease, p ...driver.Place) {
			l.Follow(p...)
			followed <- p[0]
		}
		h.news = func(l driver.Lease, ctx context.Context) ([]driver.News, error) {
			if waits.Add(1) == 1 {
				p := <-followed
				return []driver.News{{Place: p, Held: true}}, nil // it is not
			}
			return l.News(ctx)
		}
		h.claim = func(l driver.Lease, ctx context.Context, c ...driver.Claim) ([]driver.Place, error) {
			if claims.Add(1) == 1 {
				return l.Claim(ctx, c...)
			}
			<-ctx.Done()
			return nil, ctx.Err()
		}
		s, s2 := b.session("a", b.store, Options{}), b.session("b", h, Options{})
		b.lead(s, "n")
		ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		defer cancel()
		failed := make(chan error)
		go func() { _, err := s2.Election("n").Campaign(ctx, nil); failed <- err }()
		synctest.Wait() // it pauses before it follows again
		line, _ := b.store.Line(context.Background(), "n")
		b.store.Remove("n", line.Waiters[0].Token)
		if err := <-failed; strings.Contains(err.Error(), "answered with the place") {
			t.Errorf("the store never said that: %v", err)
		}
	})
}

// The pauses between tries grow to a second, which may be all the time that a try has.
func TestAPauseDoesNotUseTheTimeOfTheTry(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		var left []time.Duration
		h := &hooked{Store: b.store}
		h.claim = func(_ driver.Lease, ctx context.Context, _ ...driver.Claim) ([]driver.Place, error) {
			until, _ := ctx.Deadline()
			left = append(left, time.Until(until))
			return nil, errors.New("no answer")
		}

		s := b.session("a", h, Options{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := s.Election("n").Campaign(ctx, nil); !errors.Is(err, ErrUnreachable) {
			t.Errorf("Campaign: %v", err)
		}
		if len(left) < 5 || left[4] != left[0] {
			t.Errorf("the tries had %v, want the same time for each", left)
		}
	})
}

func TestACampaignThatFindsItsLeaseGoneStandsUnderTheNext(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", &hooked{Store: b.store, news: noNews}, Options{})
		b.lead(s, "other")
		b.store.Expire("other") // the lease is gone, and the session has not heard of it yet
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := s.Election("n").Campaign(ctx, nil); err != nil {
			t.Errorf("Campaign: %v, want a term under a new lease", err)
		}
	})
}

// Close has begun to tell the claims, and telling the first takes its time. A campaign that was
// about to join must not get in: the round has passed it by, so that it would never hear that it
// has to end, and Close would wait for it.
func TestACampaignDoesNotJoinBehindTheBackOfClose(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		var hold atomic.Bool
		aboutToJoin, join := make(chan struct{}), make(chan struct{})
		real := b.clock
		b.clock = func() time.Duration {
			if hold.Load() && calledBy("(*lease).alive") {
				hold.Store(false)
				close(aboutToJoin)
				<-join
			}
			return real()
		}
		b.lead(b.session("a", b.store, Options{}), "m")
		s := b.session("b", b.store, Options{})
		telling, told := make(chan struct{}), make(chan struct{})
		tell := sync.OnceFunc(func() { close(telling); <-told })
		waits := &doneHook{context.Background(), func() {
			if calledBy("(*claim).notify") { // the call that waits is being interrupted
				tell()
			}
		}}
		lost := make(chan error, 1)
		go func() { _, err := s.Election("m").Campaign(waits, nil); lost <- err }()
		synctest.Wait()
		hold.Store(true)
		won := make(chan error, 1)
		passed := make(chan struct{}) // it has tried to join, with or without success
		pass := sync.OnceFunc(func() { close(passed) })
		joins := &doneHook{context.Background(), func() {
			if calledBy("primacy.pause", "(*campaigner).call") {
				pass()
			}
		}}
		go func() { _, err := s.Election("n").Campaign(joins, nil); won <- err }()
		<-aboutToJoin
		limit, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		closed := make(chan error, 1)
		go func() { closed <- s.Close(limit) }()
		<-telling
		close(join)
		<-passed
		close(told)
		if err := <-closed; err != nil {
			t.Errorf("Close: %v, want nil", err)
		}
		for _, c := range []chan error{lost, won} {
			if err := <-c; !errors.Is(err, ErrClosed) {
				t.Errorf("a campaign beside Close: %v, want ErrClosed", err)
			}
		}
	})
}

// Of three campaigns of one process for one name the first leads and the second gives up. The third
// still waits for the first: let in beside it, it would take the place of the term from under it,
// for a lease has one claim for each name.
func TestACampaignThatGivesUpItsTurnLetsNobodyPast(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		term := b.lead(s, "n")
		patient := make(chan *Term, 1)
		go func() {
			next, _ := s.Election("n").Campaign(context.Background(), nil)
			patient <- next
		}()
		synctest.Wait()
		for _, patience := range []time.Duration{time.Second, time.Minute} {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			if _, err := s.Election("n").Campaign(ctx, nil); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a campaign beside the term: %v, want that it waits until its context ends", err)
			}
		}
		line, _ := b.store.Line(context.Background(), "n")
		if line.Holder == nil || line.Holder.Token != uint64(term.Token()) || len(line.Waiters) > 0 ||
			term.Check() != nil {
			t.Errorf("the line is %+v, Check %v; want the term under token %d alone", line, term.Check(), term.Token())
		}
		_ = term.Resign(context.Background())
		if next := soon(patient, time.Minute); next == nil {
			t.Fatal("who waited on was forgotten with those who gave up")
		} else {
			_ = next.Resign(context.Background())
		}
		synctest.Wait()
		if len(s.seats.taken) != 0 {
			t.Errorf("%d names are kept though nobody stands for them", len(s.seats.taken))
		}
	})
}

// A panic of the store's client comes on the goroutine of the caller, who may recover. His claim is
// given up then, whatever the store has made of it, and his next campaign wins.
func TestAPanicOfTheClientLeavesNothing(t *testing.T) {
	type campaign func(ctx context.Context, s *Session) error
	elect := func(ctx context.Context, s *Session) error {
		_, err := s.Election("n").Campaign(ctx, &CampaignOptions{ObeyPauses: true})
		return err
	}
	acquire := func(ctx context.Context, s *Session) error {
		_, err := s.Semaphore("n", 1).Acquire(ctx)
		return err
	}
	for what, c := range map[string]struct {
		campaign
		waits  bool // somebody else leads meanwhile
		breaks func(b *world, h *hooked)
	}{
		"the claim is not entered": {elect, false, func(_ *world, h *hooked) {
			h.claim = func(driver.Lease, context.Context, ...driver.Claim) ([]driver.Place, error) { panic("client") }
		}},
		"a slot is not entered": {acquire, false, func(_ *world, h *hooked) {
			h.claim = func(driver.Lease, context.Context, ...driver.Claim) ([]driver.Place, error) { panic("client") }
		}},
		"the claim is entered": {elect, false, func(_ *world, h *hooked) {
			h.claim = func(l driver.Lease, ctx context.Context, c ...driver.Claim) ([]driver.Place, error) {
				_, _ = l.Claim(ctx, c...)
				panic("client")
			}
		}},
		"its lease ends meanwhile": {elect, false, func(b *world, h *hooked) {
			h.claim = func(driver.Lease, context.Context, ...driver.Claim) ([]driver.Place, error) {
				b.store.Partition("a", true)
				time.Sleep(time.Minute)
				b.store.Partition("a", false)
				panic("client")
			}
		}},
		"it waits": {elect, true, func(_ *world, h *hooked) {
			h.follow = func(driver.Lease, ...driver.Place) { panic("client") }
		}},
		"it waits, and the store refuses to tell of it": {elect, true, func(_ *world, h *hooked) {
			refused := make(chan driver.Place, 1)
			h.follow = func(_ driver.Lease, p ...driver.Place) {
				refused <- p[0]
				time.Sleep(time.Second)
				panic("client")
			}
			h.news = func(_ driver.Lease, ctx context.Context) ([]driver.News, error) {
				select {
				case p := <-refused:
					return []driver.News{{Place: p, Refused: driver.ErrRefused}}, nil
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
		}},
		"it is won, and the pauses are read": {elect, false, func(b *world, h *hooked) {
			h.Store = &brokenJournal{Store: b.store}
		}},
	} {
		t.Run(what, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *world) {
				h := &hookedJournal{hooked{Store: b.store}, b.store}
				s := b.session("a", h, Options{})
				var first *Term
				if c.waits {
					first = b.lead(b.session("b", b.store, Options{}), "n")
				}
				mends := b.breakable(&h.hooked, c.breaks)
				h.Journal = h.Store.(driver.Journal)
				func() {
					defer func() {
						if r := recover(); r != "client" {
							t.Errorf("recovered: %v", r)
						}
					}()
					t.Errorf("Campaign: %v", c.campaign(t.Context(), s))
				}()
				mends()
				if c.waits {
					_ = first.Unlock()
				}
				time.Sleep(time.Second) // for the release
				b.holds("n", 0)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if err := c.campaign(ctx, s); err != nil {
					t.Errorf("the next campaign: %v", err)
				}
			})
		})
	}
}

// breakable breaks h, until mends is called.
func (b *world) breakable(h *hooked, breaks func(*world, *hooked)) (mends func()) {
	var broken atomic.Bool
	bad := *h
	breaks(b, &bad)
	h.Store = bad.Store
	h.claim = func(l driver.Lease, ctx context.Context, c ...driver.Claim) ([]driver.Place, error) {
		if broken.Load() && bad.claim != nil {
			return bad.claim(l, ctx, c...)
		}
		return l.Claim(ctx, c...)
	}
	h.follow = func(l driver.Lease, p ...driver.Place) {
		if broken.Load() && bad.follow != nil {
			bad.follow(l, p...)
		} else {
			l.Follow(p...)
		}
	}
	h.news = func(l driver.Lease, ctx context.Context) ([]driver.News, error) {
		if broken.Load() && bad.news != nil {
			return bad.news(l, ctx)
		}
		return l.News(ctx)
	}
	broken.Store(true)
	return func() { broken.Store(false) }
}

// hookedJournal is a hooked store with a journal.
type hookedJournal struct {
	hooked
	driver.Journal
}

// brokenJournal panics when it is read for the second time.
type brokenJournal struct {
	*memstore.Store
	reads int
}

func (j *brokenJournal) Records(ctx context.Context, name, before string, limit int) ([]driver.Record, error) {
	if j.reads++; j.reads == 2 {
		panic("client")
	}
	return j.Store.Records(ctx, name, before, limit)
}

// A candidate whose campaign was left by a panic follows, and may run again.
func TestACandidateAfterAPanicOfTheClient(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		h := &hooked{Store: b.store}
		h.claim = func(driver.Lease, context.Context, ...driver.Claim) ([]driver.Place, error) { panic("client") }
		s, ended := b.session("a", h, Options{}), 0
		go func() {
			for ev := range s.Events(t.Context()) {
				if ev.Kind == CampaignEnded {
					ended++
				}
			}
		}()
		synctest.Wait()
		c := s.Candidate("n", nil)
		run := func() (recovered any, err error) {
			defer func() { recovered = recover() }()
			return nil, c.Run(t.Context(), func(context.Context, *Term) error { return nil })
		}
		if r, _ := run(); r != "client" {
			t.Fatalf("recovered: %v", r)
		}
		if state, _ := c.State(); state != StateFollower {
			t.Errorf("the candidate is a %v", state)
		}
		if synctest.Wait(); ended != 1 {
			t.Errorf("%d campaigns were told to have ended, want 1", ended)
		}
		h.claim = nil
		if r, err := run(); r != nil || err != nil {
			t.Errorf("Run: %v, %v", r, err)
		}
	})
}
