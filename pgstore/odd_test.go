package pgstore_test

import (
	"context"
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/pgtest"
	"github.com/primacy-go/primacy/pgstore"
)

// A role or database may have settings of its own, which must not change what a call means.
func TestOddSettingsOfARole(t *testing.T) {
	t.Parallel()
	srv := pgtest.Start(t, pgtest.Options{NoFsync: true})
	for _, set := range []string{"bytea_output = escape", "client_encoding = 'LATIN1'", "standard_conforming_strings = off", "IntervalStyle = sql_standard",
		"DateStyle = 'SQL, DMY'", "search_path = ''", "default_transaction_deferrable = on", "extra_float_digits = -15", "plan_cache_mode = force_generic_plan", "row_security = off",
		"array_nulls = off", "TimeZone = 'Asia/Tokyo'"} {
		srv.Exec("ALTER ROLE " + pgtest.User + " SET " + set)
	}
	s := opened(t, pgstore.Config{DSN: srv.URL(), Prefix: `ö"'\$`})
	l, w := granted(t, s, time.Minute), granted(t, s, time.Minute)
	const name, value = `näme 'with' "quotes" \ and {a,NULL} €`, "\x00\xffv\\alue"
	p, err := l.Claim(soon(t), driver.Claim{Name: name, ID: rand.Text(), Value: []byte(value)}, driver.Claim{Name: "NULL", ID: rand.Text()})
	if err != nil {
		t.Fatal(err)
	}
	done := waiting(t, w, entered(t, w, name))
	ln, err := s.Line(soon(t), name)
	if err != nil || ln.Holder == nil || string(ln.Holder.Value) != value || len(ln.Waiters) != 1 {
		t.Fatalf("Line = %+v, %v", ln, err)
	}
	if all, err := s.Lines(soon(t), "näme"); err != nil || len(all) != 1 || all[0].Name != name {
		t.Errorf("Lines = %+v, %v", all, err)
	}
	if err := l.Renew(soon(t)); err != nil {
		t.Error(err)
	}
	if err := l.Release(soon(t), p...); err != nil {
		t.Fatal(err)
	}
	(<-done).must(t)
	if _, added, err := s.Append(soon(t), name, driver.Record{Key: "k", Value: []byte(value)}, 3); err != nil || !added {
		t.Errorf("Append = %v, %v", added, err)
	}
	if all, err := s.Journals(soon(t), "nä"); err != nil || len(all) != 1 || all[0] != name {
		t.Errorf("Journals = %q, %v", all, err)
	}
	if all, err := s.Records(soon(t), name, "", 9); err != nil || len(all) != 1 || string(all[0].Value) != value {
		t.Errorf("Records = %q, %v", all, err)
	}
}

// Time limits of a role end calls, whose outcome is unknown then, and no lease.
func TestTimeLimitsOfARole(t *testing.T) {
	long(t)
	t.Parallel()
	srv := pgtest.Start(t, pgtest.Options{NoFsync: true})
	srv.Exec("ALTER ROLE " + pgtest.User + " SET statement_timeout = 300; ALTER ROLE " + pgtest.User + " SET lock_timeout = 200; ALTER ROLE " + pgtest.User + " SET idle_in_transaction_session_timeout = 3000; ALTER ROLE " + pgtest.User + " SET idle_session_timeout = 500")
	s := opened(t, pgstore.Config{DSN: srv.URL()})
	l, w := granted(t, s, 2*time.Second), granted(t, s, time.Minute)
	p := entered(t, l, "n")
	done := waiting(t, w, entered(t, w, "n"))
	for range 4 {
		time.Sleep(700 * time.Millisecond)
		if err := l.Renew(soon(t)); err != nil {
			t.Errorf("Renew: %v", err)
		}
	}
	hold, err := connected(t, srv).Begin(soon(t))
	if err == nil {
		_, err = hold.Exec(soon(t), "SET LOCAL idle_in_transaction_session_timeout = 0; SET LOCAL statement_timeout = 0; LOCK TABLE primacy.claims")
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := l.Release(ctx, p); err == nil || final(err) || strings.Contains(err.Error(), "\n") {
		t.Errorf("Release behind a lock = %v, want an unknown outcome", err)
	}
	_ = hold.Rollback(soon(t))
	if err := l.Release(soon(t), p); err != nil {
		t.Error(err)
	}
	(<-done).must(t)
}
