package pgstore_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/primacy-go/primacy/internal/pgtest"
	"github.com/primacy-go/primacy/pgstore"
)

// muteAt returns the address of a proxy to the server which, once it has seen the mark come from a
// client, passes all but the last bytes of that on, and then nothing more in either direction. Its
// kernel answers for it, so that keepalive finds nothing.
func muteAt(t *testing.T, srv *pgtest.Server, mark string, less int, mute *atomic.Bool) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { c.Close() })
			s, err := net.Dial("tcp", srv.Addr())
			if err != nil {
				c.Close()
				continue
			}
			t.Cleanup(func() { s.Close() })
			go func() { _, _ = io.Copy(c, s); c.Close() }()
			go func() {
				b := make([]byte, 1<<16)
				for {
					n, err := c.Read(b)
					if err != nil {
						s.Close()
						return
					}
					if mute.Load() && bytes.Contains(b[:n], []byte(mark)) {
						_, _ = s.Write(b[:n-less])
						return
					}
					_, _ = s.Write(b[:n])
				}
			}()
		}
	}()
	return ln.Addr().String()
}

// A link that dies in the middle of a call must not keep the line: had the server all of the call
// but the word to commit, it would hold the lock on the line until the link is given up, which a
// proxy that hangs never lets happen.
func TestALinkThatDiesInACallHoldsUpNobody(t *testing.T) {
	t.Parallel()
	srv := server(t)
	var mute atomic.Bool
	dying := opened(t, pgstore.Config{DSN: srv.URLAt(muteAt(t, srv, "release(", 5, &mute))}) // a Sync has five bytes
	l, w := granted(t, dying, steady), granted(t, opened(t, pgstore.Config{DSN: srv.URL()}), steady)
	p := entered(t, l, "n")
	mute.Store(true)
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	if err := l.Release(ctx, p); err == nil || final(err) {
		t.Errorf("Release over a link that has died = %v, want an unknown outcome", err)
	}
	for range 5 {
		q := entered(t, w, "n")
		if err := w.Release(soon(t), q); err != nil {
			t.Fatalf("Release by another: %v", err)
		}
	}
}

// advisory counts the locks of lines in the database of the test.
const advisory = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"

// A client that is frozen while it reads a long answer keeps no line. Nothing is locked while Lines
// is read, whatever was dead before.
func TestAFrozenReaderOfLinesLocksNothing(t *testing.T) {
	t.Parallel()
	srv := server(t)
	s := opened(t, pgstore.Config{DSN: srv.URL()})
	dead, w := granted(t, s, steady), granted(t, s, steady)
	entered(t, dead, "n")
	expire(srv, dead)
	if _, err := s.Lines(soon(t), ""); err != nil {
		t.Fatal(err)
	}
	dead = granted(t, s, steady)
	entered(t, dead, "m")
	expire(srv, dead)
	tx, err := connected(t, srv).Begin(soon(t)) // the answer is on its way as long as this runs
	if err == nil {
		_, err = tx.Exec(soon(t), "SELECT * FROM primacy.all_lines('')")
	}
	if err != nil {
		t.Fatal(err)
	}
	if n := srv.Query(advisory); n != "0" {
		t.Errorf("%s lines are locked while Lines is read", n)
	}
	if p := entered(t, w, "m"); !p.Held {
		t.Errorf("place = %+v", p)
	}
	_ = tx.Rollback(soon(t))
}

// A client that reads nothing of what it is sent is given up, and with it what its call has locked.
func TestAClientThatReadsNothingIsGivenUp(t *testing.T) {
	long(t)
	t.Parallel()
	srv := server(t)
	stuck := make(chan *pgx.Conn, 1)
	s := opened(t, pgstore.Config{DSN: srv.URL()})
	pgstore.Connect(soon(t), s, func(conn *pgx.Conn) { stuck <- conn })
	conn := <-stuck
	defer conn.PgConn().Conn().Close()
	sql := "SELECT pg_advisory_xact_lock(42), repeat('x', 1000) FROM generate_series(1, 100000)\x00"
	msg := append([]byte{'Q', 0, 0, 0, byte(len(sql) + 4)}, sql...)
	if _, err := conn.PgConn().Conn().Write(msg); err != nil {
		t.Fatal(err)
	}
	locked := func() bool { return srv.Query(advisory+" AND granted") != "0" }
	eventually(t, "the lock", locked)
	begun := time.Now()
	eventually(t, "the server gives the client up", func() bool { return !locked() })
	t.Logf("given up after %v", time.Since(begun))
}
