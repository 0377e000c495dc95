package primacy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// inTxns is a store on which up to 125 calls of Append travel together, one Txn after the other.
type inTxns struct {
	appends
	gathers bool

	mu    sync.Mutex
	each  time.Duration           // for a Txn
	n     int                     // calls in the last Txn
	until time.Time               // when that one is over
	now   int                     // calls under way
	fail  func(name string) error // nil: nothing fails
	of    map[string]int          // calls, by journal
}

func (s *inTxns) Caps() driver.Caps {
	c := s.Store.Caps()
	c.Gathers = s.gathers
	return c
}

func (s *inTxns) Append(ctx context.Context, name string, r driver.Record, keep int) (driver.Record, bool, error) {
	select {
	case <-time.After(s.wait(name)):
	case <-ctx.Done():
		s.over(true)
		return driver.Record{}, false, ctx.Err()
	}
	s.over(false)
	if err := s.failure(name); err != nil {
		return driver.Record{}, false, err
	}
	return s.appends.Append(ctx, name, r, keep)
}

func (s *inTxns) Records(ctx context.Context, name, before string, limit int) ([]driver.Record, error) {
	if err := s.failure(name); err != nil {
		return nil, err
	}
	return s.appends.Records(ctx, name, before, limit)
}

// wait counts a call, and returns when the Txn that it goes in is over.
func (s *inTxns) wait(name string) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of[name]++
	now := time.Now()
	if s.until.Before(now) {
		s.until, s.n = now, 0
	}
	if s.n%125 == 0 || !s.gathers {
		s.until = s.until.Add(s.each)
	}
	s.n, s.now = s.n+1, s.now+1
	return s.until.Sub(now)
}

// over notes that a call is over. If all have given up, only the Txn that is under way goes on.
func (s *inTxns) over(gaveUp bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now--; gaveUp && s.now == 0 {
		if last := time.Now().Add(s.each); s.until.After(last) {
			s.until, s.n = last, 0
		}
	}
}

func (s *inTxns) failure(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail == nil {
		return nil
	}
	return s.fail(name)
}

func (s *inTxns) failWith(fail func(name string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = fail
}

func (s *inTxns) calls(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of[name]
}

// inGroupsAndNot does a test on a store that gathers calls, and on one that does not.
func inGroupsAndNot(t *testing.T, do func(t *testing.T, b *world, on *inTxns)) {
	for _, gathers := range []bool{false, true} {
		t.Run(fmt.Sprint("gathers=", gathers), func(t *testing.T) {
			bubble(t, func(t *testing.T, b *world) {
				do(t, b, &inTxns{appends: appends{Store: b.store}, gathers: gathers, of: map[string]int{}})
			})
		})
	}
}

// Beginnings that are due with signs of life keep no term that leads from leaving further ones.
func TestBeginningsTakeNoPlaceOfSignsOfLife(t *testing.T) {
	inGroupsAndNot(t, func(t *testing.T, b *world, on *inTxns) {
		s := b.session("a", on, Options{TTL: time.Minute})
		for i := range maxAlive {
			b.lead(s, fmt.Sprint("old", i))
		}
		time.Sleep(aliveEvery - 10*time.Millisecond)
		for i := range maxAlive {
			b.lead(s, fmt.Sprint("new", i))
		}
		time.Sleep(10 * time.Minute)
		for i := range maxAlive {
			if name := fmt.Sprint("old", i); on.calls(alivePrefix+name) < 9 {
				t.Errorf("%s has left %d signs of life in 11 minutes", name, on.calls(alivePrefix+name))
			}
		}
	})
}

// Close drops the beginnings that are being written: the end of a term waits behind them.
func TestCloseWritesAnEndBehindBeginnings(t *testing.T) {
	inGroupsAndNot(t, func(t *testing.T, b *world, on *inTxns) {
		on.each = 300 * time.Millisecond
		s := b.session("a", on, Options{})
		b.lead(s, "trusted")
		time.Sleep(5 * aSecond)
		x := b.lead(s, "gone")
		es := s.Elections(nil)
		names := manyNames(1000)
		_ = es.Stand(names...)
		terms, _, _ := collect(t, es, len(names))
		time.Sleep(100 * time.Millisecond)
		b.remove(x)
		time.Sleep(time.Millisecond)
		s.history.close(context.Background())
		sameTerms(t, b.past("gone", 0), "a deposed")
		if n := len(s.history.lost); n > 0 {
			t.Errorf("%d ends are lost", n)
		}
		_ = es.Resign(context.Background(), terms...)
	})
}

// A store that needs half a second for a Txn has not failed, however many Txns a group is.
func TestAStoreThatIsSlowIsTrusted(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		on := &inTxns{appends: appends{Store: b.store}, gathers: true, of: map[string]int{}}
		on.each = 500 * time.Millisecond
		s := b.session("a", on, Options{})
		es := s.Elections(nil)
		names := manyNames(maxGroup + 1)
		_ = es.Stand(names...)
		terms, _, _ := collect(t, es, len(names))
		time.Sleep(30 * time.Second)
		for _, term := range terms {
			if n := on.calls(historyPrefix + term.Name()); n != 1 {
				t.Errorf("the record of %s was appended %d times, want once", term.Name(), n)
			}
		}
		s.history.mu.Lock()
		defer s.history.mu.Unlock()
		if s.history.failures != 0 || !s.history.trusted {
			t.Errorf("%d failures, trusted %v", s.history.failures, s.history.trusted)
		}
	})
}

// A record that the store may have or not is written though another of its group is refused.
func TestARefusalDropsNoRecordOfUnknownOutcome(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		on := &inTxns{appends: appends{Store: b.store}, gathers: true, of: map[string]int{}}
		s := b.session("a", on, Options{})
		b.lead(s, "trusted")
		time.Sleep(5 * aSecond)
		on.failWith(func(name string) error {
			switch {
			case strings.HasSuffix(name, "y"):
				return driver.ErrRefused
			case strings.HasSuffix(name, "x") && on.of[name] <= 2:
				return errors.New("no answer in time")
			}
			return nil
		})
		x, y := b.lead(s, "x"), b.lead(s, "y")
		b.remove(x)
		b.remove(y)
		time.Sleep(refusedPause / 2)
		sameTerms(t, b.past("x", 0), "a deposed")
	})
}

// Terms that begin as the store goes down sum up those before them when it is back: the first one
// may go without, and no other.
func TestRecordsSumUpAfterAnOutage(t *testing.T) {
	inGroupsAndNot(t, func(t *testing.T, b *world, on *inTxns) {
		s := b.session("a", on, Options{})
		const many = 100
		name := func(i int) string { return fmt.Sprint("x", i) }
		for i := range many {
			_ = b.lead(s, name(i)).Resign(context.Background())
		}
		time.Sleep(time.Minute)
		for i := range many {
			b.lead(s, name(i))
		}
		on.failWith(func(string) error { return errors.New("no answer") })
		time.Sleep(time.Minute)
		on.failWith(nil)
		time.Sleep(time.Minute)
		without := 0
		for i := range many {
			all, err := b.store.Records(context.Background(), historyPrefix+name(i), "", 1)
			if err != nil || len(all) != 1 {
				t.Fatalf("%s: %v, %v", name(i), all, err)
			}
			if _, r, _, ok := readRecord(all[0]); !ok || r.Past == nil {
				without++
			}
		}
		if without > 1 {
			t.Errorf("%d records do not sum up the terms before", without)
		}
	})
}

// While the store is not trusted, one beginning is in hand. All others are still known to have no
// record, so the ends of those terms are recorded as if they were short.
func TestWhatWaitsForAStoreThatIsDownHasNotBegun(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		on := &inTxns{appends: appends{Store: b.store}, gathers: true, of: map[string]int{}}
		on.failWith(func(string) error { return errors.New("no answer") })
		s := b.session("a", on, Options{})
		var terms []*Term
		for i := range 50 {
			terms = append(terms, b.lead(s, fmt.Sprint("x", i)))
		}
		time.Sleep(10 * time.Second)
		begun := 0
		for _, term := range terms {
			term.c.mu.Lock()
			if term.c.record.begun {
				begun++
			}
			term.c.mu.Unlock()
		}
		if begun != 1 {
			t.Errorf("%d beginnings were taken out, want 1", begun)
		}
	})
}

// An end waits for the one before it in its journal, and no end of another journal waits with it.
func TestEndsOfOtherJournalsPassOneThatWaits(t *testing.T) {
	w := &historyWriter{group: maxGroup, trusted: true}
	for _, n := range []string{"x1", "x2", "y1", "x3", "z1"} {
		w.ends = append(w.ends, journalRecord{journal: n[:1], key: n})
	}
	keys := func(all []journalRecord) (s string) {
		for _, n := range all {
			s += n.key + " "
		}
		return s
	}
	if got, left := keys(w.takeEndsLocked()), keys(w.ends); got != "x1 y1 z1 " || left != "x2 x3 " {
		t.Errorf("taken: %s; left: %s", got, left)
	}
}
