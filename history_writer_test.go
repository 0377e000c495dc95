package primacy

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
)

func TestATermThatIsOverAtOnceLeavesItsEndAlone(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		on := &appends{Store: b.store}
		s := b.session("a", on, Options{})
		term := b.lead(s, "x")
		if sumsUp(term.Token()) {
			t.Fatalf("the token %d is one whose end is appended; take another", term.Token())
		}
		synctest.Wait()
		_ = term.Resign(context.Background())
		time.Sleep(aSecond)
		sameTerms(t, b.past("x", 0), "a resigned")
		if n := on.n.Load(); n != 0 {
			t.Errorf("%d records were appended, want none: the release has it", n)
		}
		b.lead(s, "x")
		time.Sleep(aSecond)
		if n := on.n.Load(); n != 1 {
			t.Errorf("%d records were appended for one that leads, want 1", n)
		}
	})
}

// appends counts calls of Append, and can make them fail.
type appends struct {
	driver.Store
	n   atomic.Int64
	err atomic.Pointer[error]
}

func (s *appends) Append(ctx context.Context, name string, r driver.Record, keep int) (driver.Record, bool, error) {
	s.n.Add(1)
	if err := s.err.Load(); err != nil {
		return driver.Record{}, false, *err
	}
	return s.Store.(driver.Journal).Append(ctx, name, r, keep)
}

func (s *appends) Records(ctx context.Context, name, before string, limit int) ([]driver.Record, error) {
	return s.Store.(driver.Journal).Records(ctx, name, before, limit)
}

func (s *appends) Journals(ctx context.Context, prefix string) ([]string, error) {
	return s.Store.(driver.Journal).Journals(ctx, prefix)
}

func TestARecordHoldsUpNothing(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		ctx := context.Background()
		on := &appends{Store: b.store}
		down := errors.New("no answer")
		on.err.Store(&down)
		s := b.session("a", on, Options{})
		begin := time.Now()
		for i := range 50 {
			term := b.lead(s, fmt.Sprint("x", i))
			if i%2 == 0 {
				if err := term.Resign(ctx); err != nil {
					t.Fatal(err)
				}
			} else {
				b.remove(term)
			}
		}
		if d := time.Since(begin); d != 0 {
			t.Errorf("wins and releases took %v while no record could be written", d)
		}
		time.Sleep(time.Minute)
		on.err.Store(nil)
		time.Sleep(time.Minute)
		if n := on.n.Load(); n > 200 {
			t.Errorf("%d tries in a minute: that is a storm", n)
		}
		for i := range 50 {
			want := "a resigned"
			if i%2 == 1 {
				want = "a deposed" // told late, and told
			}
			sameTerms(t, b.past(fmt.Sprint("x", i), 0), want)
		}
		on.err.Store(&down)
		b.remove(b.lead(s, "y"))
		time.Sleep(aSecond)
		begin = time.Now()
		if err := s.Close(ctx); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(begin); d > 200*time.Millisecond {
			t.Errorf("Close took %v while the store takes no record", d)
		}
	})
}

func TestCloseWaitsForRecordsAMomentOnly(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		on := &slowAppends{appends{Store: b.store}}
		s := b.session("a", on, Options{})
		b.remove(b.lead(s, "x"))
		b.remove(b.lead(s, "y"))
		synctest.Wait()
		begin := time.Now()
		_ = s.Close(context.Background())
		if d := time.Since(begin); d != 800*time.Millisecond {
			t.Errorf("Close took %v, want what two records need", d)
		}
		sameTerms(t, b.past("x", 0), "a deposed")
		sameTerms(t, b.past("y", 0), "a deposed")
	})
}

// slowAppends takes its time.
type slowAppends struct{ appends }

func (s *slowAppends) Append(ctx context.Context, name string, r driver.Record, keep int) (driver.Record, bool, error) {
	time.Sleep(400 * time.Millisecond)
	return s.appends.Append(ctx, name, r, keep)
}

func TestManyWinsAreNoStormOfRecords(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		on := &together{appends: appends{Store: b.store}}
		s := b.session("a", on, Options{})
		es := s.Elections(nil)
		names := manyNames(2000)
		_ = es.Stand(names...)
		terms, _, _ := collect(t, es, len(names))
		_ = es.Resign(context.Background(), terms[:1000]...)
		time.Sleep(time.Minute)
		if most := on.most.Load(); most != 1 {
			t.Errorf("%d records at a time, want 1", most)
		}
		written := int64(0)
		for _, term := range terms[:1000] {
			if sumsUp(term.Token()) {
				written++
			}
			sameTerms(t, b.past(term.Name(), 0), "a resigned")
		}
		if n := on.n.Load(); n != 1000+written {
			t.Errorf("%d records were appended, want the 1000 that lead and %d of the others", n, written)
		}
		sameTerms(t, b.past(terms[1500].Name(), 0), "a leading")
	})
}

// together counts how many records are appended at a time.
type together struct {
	appends
	now, most atomic.Int64
}

func (s *together) Append(ctx context.Context, name string, r driver.Record, keep int) (driver.Record, bool, error) {
	s.most.Store(max(s.most.Load(), s.now.Add(1)))
	defer s.now.Add(-1)
	time.Sleep(time.Millisecond)
	return s.appends.Append(ctx, name, r, keep)
}
