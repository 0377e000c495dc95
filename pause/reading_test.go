package pause_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
	"github.com/primacy-go/primacy/pause"
)

// slowReads takes a second for each reading of a journal, and counts them.
type slowReads struct {
	*memstore.Store
	mu            sync.Mutex
	n, now, most  int
	err           error
	neverReturned bool
}

func (s *slowReads) Records(ctx context.Context, name, before string, limit int) ([]driver.Record, error) {
	s.mu.Lock()
	s.n++
	s.now++
	s.most = max(s.most, s.now)
	err := s.err
	s.mu.Unlock()
	defer func() { s.mu.Lock(); s.now--; s.mu.Unlock() }()
	if s.neverReturned {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	defer time.Sleep(time.Second)
	return s.Store.Records(ctx, name, before, limit)
}

// TestManyShareAReading: those who ask within a reading share the next one, and those to whom an
// older one will do ask for none.
func TestManyShareAReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &slowReads{Store: memstore.New(memstore.Options{})}
		r := pause.NewReader(st, 5*time.Second)
		var all sync.WaitGroup
		ask := func(at time.Time, want string) {
			all.Go(func() {
				now, err := r.Since(t.Context(), at)
				p := now.Of("n")
				if err != nil || want == "" && p != nil || want != "" && (p == nil || p.Scope != want) {
					t.Errorf("paused %v, want %q: %v", p, want, err)
				}
			})
			synctest.Wait()
		}
		ask(time.Now(), "")
		for range 1000 {
			time.Sleep(500 * time.Microsecond)
			ask(time.Now(), "n")
		}
		set(t, st.Store, "n", time.Hour, false)
		all.Wait()
		if st.n != 2 || st.most != 1 {
			t.Errorf("a thousand who asked within a second cost %d readings, %d at a time", st.n, st.most)
		}
		ask(time.Now().Add(-time.Second), "n")
		if all.Wait(); st.n != 2 {
			t.Error("one to whom an older reading will do had the store read")
		}
		ask(time.Now(), "n")
		if all.Wait(); st.n != 3 {
			t.Errorf("one who asks for now was told of before: %d readings", st.n)
		}
	})
}

// TestAReadingThatFailsIsShared, too: a store that does not answer is not asked by everybody.
func TestAReadingThatFailsIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &slowReads{Store: memstore.New(memstore.Options{}), err: driver.ErrRefused}
		r := pause.NewReader(st, 5*time.Second)
		for range 3 {
			if _, err := r.Since(t.Context(), time.Now().Add(-time.Minute)); !errors.Is(err, driver.ErrRefused) {
				t.Errorf("told %v", err)
			}
		}
		if st.n != 1 {
			t.Errorf("%d readings", st.n)
		}
		st.neverReturned = true
		time.Sleep(time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		_, err := r.Since(ctx, began)
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		if _, err := r.Since(t.Context(), began); err == nil || time.Since(began) != 5*time.Second {
			t.Errorf("a reading has no limit: after %v: %v", time.Since(began), err)
		}
	})
}
