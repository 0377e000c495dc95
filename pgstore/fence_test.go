package pgstore_test

import (
	"context"
	"crypto/rand"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/pgtest"
	"github.com/primacy-go/primacy/pgstore"
)

// fenced begins a transaction that is fenced with p.
func fenced(t *testing.T, srv *pgtest.Server, p driver.Place) pgx.Tx {
	t.Helper()
	tx, err := connected(t, srv).Begin(soon(t))
	if err == nil {
		err = pgstore.Fence(soon(t), tx, "", p.Name, p.Token)
	}
	if err != nil {
		t.Fatalf("Fence: %v", err)
	}
	return tx
}

func TestFence(t *testing.T) {
	t.Parallel()
	srv := server(t)
	s := pgstore.Patient(opened(t, pgstore.Config{DSN: srv.URL()}))
	for name, test := range map[string]func(*testing.T, *pgtest.Server, *pgstore.Store){
		"a release waits for the fenced transaction":     fenceRelease,
		"a take-over waits for the fenced transaction":   fenceTakeOver,
		"renewals and updates do not wait for it":        fenceRenew,
		"a term that is over is refused":                 fenceOver,
		"others in line are not held up by a release":    fenceOthers,
		"a claim of the same lease replaces it later":    fenceDisplace,
		"closing the lease leaves the fenced claim last": fenceClose,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, srv, s)
		})
	}
}

func fenceRelease(t *testing.T, srv *pgtest.Server, s *pgstore.Store) {
	l, w := granted(t, s, steady), granted(t, s, steady)
	p := entered(t, l, rand.Text())
	done := waiting(t, w, entered(t, w, p.Name))
	tx := fenced(t, srv, p)
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if err := l.Release(ctx, p); err == nil || errors.Is(err, driver.ErrGone) || errors.Is(err, driver.ErrRefused) {
		t.Errorf("Release during a fenced transaction = %v, want an unknown outcome", err)
	}
	released := make(chan error, 1)
	go func() { released <- l.Release(soon(t), p) }()
	select {
	case got := <-done:
		t.Fatalf("Wait = %+v while a fenced transaction of the holder runs", got)
	case <-time.After(200 * time.Millisecond):
	}
	if err := tx.Commit(soon(t)); err != nil {
		t.Errorf("Commit: %v", err)
	}
	if err := <-released; err != nil {
		t.Errorf("Release: %v", err)
	}
	(<-done).must(t)
}

func fenceTakeOver(t *testing.T, srv *pgtest.Server, s *pgstore.Store) {
	l, w := granted(t, s, steady), granted(t, s, steady)
	p := entered(t, l, rand.Text())
	tx := fenced(t, srv, p)
	expire(srv, l)
	done := waiting(t, w, entered(t, w, p.Name))
	third := granted(t, s, steady)
	time.Sleep(200 * time.Millisecond)          // it looks some times
	if q := entered(t, third, p.Name); q.Held { // it is neither let in nor held up
		t.Errorf("place = %+v during a fenced transaction of the holder", q)
	}
	select {
	case got := <-done:
		t.Fatalf("Wait = %+v while a fenced transaction of the dead holder runs", got)
	default:
	}
	if err := tx.Commit(soon(t)); err != nil {
		t.Errorf("Commit: %v", err)
	}
	(<-done).must(t)
}

func fenceRenew(t *testing.T, srv *pgtest.Server, s *pgstore.Store) {
	l := granted(t, s, steady)
	p := entered(t, l, rand.Text())
	tx := fenced(t, srv, p)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // they would wait as long as they may
	defer cancel()
	for range 3 {
		if err := l.Renew(ctx); err != nil {
			t.Fatalf("Renew during a fenced transaction: %v", err)
		}
		if err := l.Update(ctx, p, []byte("x")); err != nil {
			t.Fatalf("Update during a fenced transaction: %v", err)
		}
	}
	if err := tx.Commit(soon(t)); err != nil {
		t.Errorf("Commit: %v", err)
	}
}

func fenceOver(t *testing.T, srv *pgtest.Server, s *pgstore.Store) {
	l, w := granted(t, s, steady), granted(t, s, steady)
	p := entered(t, l, rand.Text())
	q := entered(t, w, p.Name)
	refused := func(what string, token uint64) {
		t.Helper()
		tx, err := connected(t, srv).Begin(soon(t))
		if err == nil {
			defer tx.Rollback(soon(t))
			err = pgstore.Fence(soon(t), tx, "", p.Name, token)
		}
		wantGone(t, what, err)
	}
	refused("fence of one who waits", q.Token)
	refused("fence of a token that nobody has", q.Token+1000000)
	if err := l.Release(soon(t), p); err != nil {
		t.Fatal(err)
	}
	refused("fence of a released term", p.Token)
	tx := fenced(t, srv, q)
	_ = tx.Rollback(soon(t))
	dead := granted(t, s, steady)
	d := entered(t, dead, rand.Text())
	expire(srv, dead)
	p.Name = d.Name
	refused("fence under a lease that has run out", d.Token)
}

func fenceOthers(t *testing.T, srv *pgtest.Server, s *pgstore.Store) {
	l, other := granted(t, s, steady), granted(t, s, steady)
	p := entered(t, l, rand.Text())
	fenced(t, srv, p)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { _ = l.Release(ctx, p) }()
	for range 5 {
		q := entered(t, other, p.Name)
		if err := other.Release(soon(t), q); err != nil {
			t.Error(err)
		}
	}
}

func fenceDisplace(t *testing.T, srv *pgtest.Server, s *pgstore.Store) {
	l := granted(t, s, steady)
	p := entered(t, l, rand.Text())
	tx := fenced(t, srv, p)
	done := make(chan driver.Place, 1)
	go func() { done <- entered(t, l, p.Name) }()
	select {
	case q := <-done:
		t.Errorf("place = %+v while a fenced transaction of the one before runs", q)
	case <-time.After(200 * time.Millisecond):
	}
	_ = tx.Rollback(soon(t))
	if q := <-done; !q.Held || q.Token <= p.Token {
		t.Errorf("place = %+v after %+v", q, p)
	}
}

func fenceClose(t *testing.T, srv *pgtest.Server, s *pgstore.Store) {
	l, w := granted(t, s, steady), granted(t, s, steady)
	p := entered(t, l, rand.Text())
	done := waiting(t, w, entered(t, w, p.Name))
	tx := fenced(t, srv, p)
	if err := l.Close(soon(t)); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-done:
		t.Fatalf("Wait = %+v while a fenced transaction of the closed lease runs", got)
	case <-time.After(200 * time.Millisecond):
	}
	_ = tx.Commit(soon(t))
	(<-done).must(t)
}
