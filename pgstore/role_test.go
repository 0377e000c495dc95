package pgstore_test

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/servertest"
	"github.com/primacy-go/primacy/pgstore"
)

// A role or database may have settings of its own, which must not change what a call means.
func TestOddSettingsOfARole(t *testing.T) {
	servertest.Long(t, "race-library")
	t.Parallel()
	srv := server(t)
	url := role(srv, "bytea_output = escape", "client_encoding = 'LATIN1'", "standard_conforming_strings = off", "IntervalStyle = sql_standard",
		"DateStyle = 'SQL, DMY'", "search_path = ''", "default_transaction_deferrable = on", "extra_float_digits = -15", "plan_cache_mode = force_generic_plan", "row_security = off",
		"array_nulls = off", "TimeZone = 'Asia/Tokyo'")
	s := opened(t, pgstore.Config{DSN: url, Prefix: `ö"'\$`})
	l, w := granted(t, s, steady), granted(t, s, steady)
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

// Texts of callers stand in the statements themselves. None of them may end its own quotes.
func TestNoTextEndsItsQuotes(t *testing.T) {
	t.Parallel()
	srv := server(t)
	srv.Exec("CREATE TABLE canary (x int)")
	s := opened(t, pgstore.Config{DSN: role(srv, "standard_conforming_strings = off", "backslash_quote = on"), Prefix: `a"'$1 -- $2`})
	owner := granted(t, s, steady)
	for i, bad := range []string{`'); DROP TABLE canary; --`, `\'); DROP TABLE canary; --`, `\`, `$1 $2 $15`, `-- `, `/*`, `E'\''`, `"}'); DROP TABLE canary; --`, `{NULL,"}`, "\n\r\t\v", "{S}.{Q}{SALT}", "-1", "\u2028'",
		"\xbf'); DROP TABLE canary; --", "\x00'; DROP TABLE canary; --", "ab\xc0\xa7); DROP TABLE canary; --"} {
		sound := func(what string, err error) {
			t.Helper()
			if i >= 13 && !errors.Is(err, driver.ErrRefused) || i < 13 && err != nil && !errors.Is(err, driver.ErrGone) {
				t.Errorf("%s of %q = %v", what, bad, err)
			}
		}
		l, err := s.Grant(soon(t), bad, time.Minute)
		sound("Grant", err)
		if err != nil {
			l = owner
		}
		places, err := l.Claim(soon(t), driver.Claim{Name: bad, Seat: bad, ID: bad, Value: []byte(bad)})
		sound("Claim", err)
		if err == nil {
			ln, err := s.Line(soon(t), bad)
			if err != nil || ln.Name != bad || ln.Holder == nil || ln.Holder.Owner != bad || string(ln.Holder.Value) != bad {
				t.Errorf("Line of %q = %+v, %v", bad, ln, err)
			}
			sound("Update", l.Update(soon(t), places[0], []byte(bad+bad)))
			sound("Ask", s.Ask(soon(t), bad, driver.Request{Token: places[0].Token}))
			sound("Release", l.Release(soon(t), places...))
		}
		_, err = s.Lines(soon(t), bad)
		sound("Lines", err)
		_, err = s.Leases(soon(t), bad)
		sound("Leases", err)
		_, err = s.Remaining(soon(t), bad)
		sound("Remaining", err)
		_, err = s.Records(soon(t), "j", bad, 1)
		sound("Records", err)
		sound("Revoke", s.Revoke(soon(t), bad))
		sound("RemoveClaim", s.RemoveClaim(soon(t), bad, 1))
		if _, _, err = s.Append(soon(t), bad, driver.Record{Key: "k", Value: []byte(bad)}, 3); err != nil { // any bytes
			t.Errorf("Append to %q = %v", bad, err)
		}
		if _, err = s.Journals(soon(t), bad); err != nil {
			t.Errorf("Journals of %q = %v", bad, err)
		}
	}
	if got := srv.Query("SELECT count(*) FROM pg_class WHERE relname = 'canary'"); got != "1" {
		t.Error("a text of a caller was carried out")
	}
}

// Time limits of a role end calls, whose outcome is unknown then, and no lease.
func TestTimeLimitsOfARole(t *testing.T) {
	long(t)
	t.Parallel()
	srv := server(t)
	s := opened(t, pgstore.Config{DSN: role(srv, "statement_timeout = 1000", "lock_timeout = 200", "idle_in_transaction_session_timeout = 3000", "idle_session_timeout = 500")})
	l, w := granted(t, s, 10*time.Second), granted(t, s, steady)
	p := entered(t, l, "n")
	done := waiting(t, w, entered(t, w, "n"))
	for range 4 {
		time.Sleep(700 * time.Millisecond) // longer than the session may be idle
		for err := l.Renew(soon(t)); err != nil; err = l.Renew(soon(t)) {
			if final(err) { // else it took longer than the limit, as on a busy disk
				t.Fatalf("Renew: %v", err)
			}
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
