package redlockstore_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/redistest"
	"github.com/primacy-go/primacy/redlockstore"
)

// finding returns the text of all findings of that level whose topic begins so.
func finding(all []driver.Finding, level driver.Level, topic string) string {
	var text []string
	for _, f := range all {
		if f.Level == level && strings.HasPrefix(f.Topic, topic) {
			text = append(text, f.Found)
		}
	}
	return strings.Join(text, "; ")
}

func TestExamine(t *testing.T) {
	t.Parallel()
	var c redlockstore.Config
	var servers []*redistest.Server
	for _, o := range []redistest.Options{{Persist: "always"}, {Args: []string{"--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru"}}, {}} {
		servers = append(servers, redistest.Start(t, o))
		c.Addrs = append(c.Addrs, servers[len(servers)-1].Addr())
	}
	c.MaxTTL = time.Minute
	s := open(t, c)
	var all []driver.Finding
	if err := retry(limited(t, time.Minute), func() error { // Open has waited for a majority
		if all = s.Examine(limited(t, time.Minute), "x"); strings.Contains(fmt.Sprint(all), "has not answered yet") {
			return errors.New("a server has not answered yet")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		level        driver.Level
		topic, found string
	}{
		{driver.Failed, "majority", "0 of 3 servers answer and count"}, // they are young
		{driver.Warning, "server " + c.Addrs[0], "does not count for"},
		{driver.Fine, "server " + c.Addrs[0], "a restart loses nothing"},
		{driver.Failed, "server " + c.Addrs[1], "volatile-lru: keys are evicted"},
		{driver.Fine, "server " + c.Addrs[2], "a restart loses keys: it does not count for 1m6s"},
		{driver.Fine, "clocks", "apart"},
	} {
		if got := finding(all, want.level, want.topic); !strings.Contains(got, want.found) {
			t.Errorf("%s of %s = %q, want %q", want.level, want.topic, got, want.found)
		}
	}
	c.Guard = -1
	s = open(t, c)
	servers[0].Stop()
	servers[2].Kill()
	_ = s.Examine(limited(t, time.Minute), "x") // the first finds the silence
	all = s.Examine(limited(t, time.Minute), "x")
	for _, want := range []struct {
		level        driver.Level
		topic, found string
	}{
		{driver.Failed, "majority", "1 of 3 servers answer and count"},
		{driver.Failed, "server " + c.Addrs[2], "refused"},
		{driver.Failed, "server " + c.Addrs[0], ""},
		{driver.Warning, "guard", "off"},
	} {
		if got := finding(all, want.level, want.topic); !strings.Contains(got, want.found) || got == "" {
			t.Errorf("%s of %s = %q, want %q", want.level, want.topic, got, want.found)
		}
	}
}

// rights are what docs/redlock.md says a user needs.
const rights = "~primacy:* &primacy:* +eval +evalsha +get +set +del +exists +pexpire +pttl +type +time " +
	"+publish +subscribe +unsubscribe +ping +info +scan"

// What docs/redlock.md says a user needs is enough, over TLS too.
func TestRightsThatAreEnough(t *testing.T) {
	t.Parallel()
	cert := etcdtest.NewCert(t, time.Now().Add(time.Hour))
	o := redistest.Options{User: "elector", Password: "sesame", TLS: cert, Young: true, Rights: rights}
	c := redlockstore.Config{Username: o.User, Password: o.Password, TLS: cert.Client(), MaxTTL: time.Minute, Guard: -1}
	for range 3 {
		c.Addrs = append(c.Addrs, redistest.Start(t, o).Addr())
	}
	s := open(t, c)
	l, next := grant(t, s, "a", time.Minute), grant(t, open(t, c), "b", time.Minute)
	p := claim(t, l, "x")
	if err := retry(limited(t, time.Minute), func() error {
		return l.Update(limited(t, time.Minute), p, []byte("v"))
	}); err != nil {
		t.Error(err)
	}
	if err := renew(t, l); err != nil {
		t.Error(err)
	}
	q := claim(t, next, "x")
	if lines, err := s.Lines(limited(t, time.Minute), ""); err != nil || len(lines) != 1 ||
		string(lines[0].Holder.Value) != "v" {
		t.Errorf("Lines = %+v, %v", lines, err)
	}
	if err := s.Revoke(limited(t, time.Minute), l.ID()); err != nil {
		t.Error(err)
	}
	if _, err := wait(t, next, q, time.Minute); err != nil {
		t.Error(err)
	}
	if f := finding(s.Examine(limited(t, time.Minute), "x"), driver.Fine, "majority"); f == "" {
		t.Error("Examine found no majority")
	}
}
