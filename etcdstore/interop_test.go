package etcdstore_test

import (
	"bufio"
	"context"
	"errors"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/servertest"
)

// TestEtcdsOwnClientsStandInTheSameLine: ours, etcd's Election, ours, `etcdctl elect`, ours: each
// gets its turn.
func TestEtcdsOwnClientsStandInTheSameLine(t *testing.T) {
	servertest.Long(t, "race-library")
	t.Parallel()
	etcdctl := etcdtest.Etcdctl(t) // before the leases below: it may have to be built, for longer than they live
	srv := etcdtest.Start(t, etcdtest.Options{})
	s := open(t, srv.Addr())
	lines := func(n int) driver.Line {
		t.Helper()
		var ln driver.Line
		eventually(t, "the line to grow", time.Minute, func() bool {
			ln = line(t, s, "mixed")
			return ln.Holder != nil && len(ln.Waiters) == n-1
		})
		return ln
	}
	const ttl = 5 * time.Minute // nothing here renews
	l1, l2, l3 := grant(t, s, "one", ttl), grant(t, s, "two", ttl), grant(t, s, "three", ttl)
	p1 := claim(t, l1, "mixed")

	session, err := concurrency.NewSession(plainClient(t, srv.Endpoint()), concurrency.WithTTL(60))
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	theirs := concurrency.NewElection(session, "primacy/mixed")
	won := make(chan error, 1)
	go func() { won <- theirs.Campaign(soon(t), "from Go") }()
	lines(2)
	turn2 := waiting(t, l2, claim(t, l2, "mixed"))
	lines(3)
	ctl := elect(t, etcdctl, srv, "mixed", "from the shell")
	ln := lines(4)
	p3 := claim(t, l3, "mixed")
	turn3 := waiting(t, l3, p3)

	if ln.Holder.Owner != "one" || ln.Waiters[1].Owner != "two" {
		t.Errorf("owners = %q and %q, want one and two", ln.Holder.Owner, ln.Waiters[1].Owner)
	}
	if w := ln.Waiters[0]; w.Owner != "" || string(w.Value) != "from Go" || w.Note == "" || w.Lease == "" {
		t.Errorf("etcd's own claim = %+v, want its value, its lease and a note", w)
	}

	release(t, l1, p1)
	if err := receive(t, "etcd's Campaign", won, time.Minute); err != nil {
		t.Fatal(err)
	}
	if h := line(t, s, "mixed").Holder; h == nil || h.Token != uint64(theirs.Rev()) {
		t.Errorf("holder = %+v, want etcd's own with revision %d", h, theirs.Rev())
	}
	if err := theirs.Resign(soon(t)); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, "our Wait behind etcd's own", turn2, time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := l2.Close(soon(t)); err != nil {
		t.Fatal(err)
	}
	if key := <-ctl.lines; !strings.HasPrefix(key, "primacy/mixed/") {
		t.Errorf("etcdctl elect printed %q, want its key", key)
	}
	if err := ctl.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, "our Wait behind etcdctl", turn3, time.Minute); err != nil {
		t.Fatal(err)
	}
	release(t, l3, p3)
}

// ctl is a running etcdctl.
type ctl struct {
	cmd   *exec.Cmd
	lines chan string
}

// elect stands in the line with `etcdctl elect` until it is told to stop.
func elect(t *testing.T, etcdctl string, srv *etcdtest.Server, name, value string) *ctl {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c := &ctl{cmd: exec.CommandContext(ctx, etcdctl, "--endpoints", srv.Addr(), "elect", "primacy/"+name, value),
		lines: make(chan string, 10)}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for sc := bufio.NewScanner(out); sc.Scan(); {
			c.lines <- sc.Text()
		}
		close(c.lines)
	}()
	t.Cleanup(func() {
		cancel()
		<-read
		_ = c.cmd.Wait()
	})
	return c
}

// TestStrangeKeysAreShown: whatever stands under a line holds it, and the line says what is odd.
func TestStrangeKeysAreShown(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	s := open(t, srv.Addr())
	c := plainClient(t, srv.Endpoint())
	lease, err := c.Grant(soon(t), 60)
	if err != nil {
		t.Fatal(err)
	}
	put := func(key, value string, opts ...clientv3.OpOption) {
		t.Helper()
		if _, err := c.Put(soon(t), key, value, opts...); err != nil {
			t.Fatal(err)
		}
	}
	put("primacy/odd/\xff\x00/deep", "no lease")
	put("primacy/odd/nothex", "a lease", clientv3.WithLease(lease.ID))
	put("primacy/bad%zz/1", "no name has this escape")
	put("primacy/loose", "no line at all")
	put("primacy/@session/77", "{garbled")
	l := grant(t, s, "me", time.Minute)
	p := claim(t, l, "odd")
	if p.Held {
		t.Error("the claim is held, but others stand before it")
	}
	if _, err := c.Put(soon(t), "primacy/@session/"+l.ID(), "{garbled",
		clientv3.WithLease(lease.ID)); err != nil {
		t.Fatal(err)
	}
	ln := line(t, s, "odd")
	if len(ln.Waiters) != 2 {
		t.Fatalf("line = %+v, want three", ln)
	}
	for i, e := range []driver.Entry{*ln.Holder, ln.Waiters[0], ln.Waiters[1]} {
		if want := []string{"never expires", "another program", "cannot be read"}[i]; !strings.Contains(e.Note, want) {
			t.Errorf("note %d = %q, want %q in it", i, e.Note, want)
		}
	}
	all, err := s.Lines(soon(t), "")
	if err != nil || len(all) != 1 || all[0].Name != "odd" {
		t.Errorf("Lines = %+v, %v, want only odd", all, err)
	}
	if err := s.Ask(soon(t), "odd", driver.Request{Token: ln.Holder.Token}); err == nil {
		t.Error("Ask of a holder that is no session = nil, want an error")
	}
}

// TestOddNamesAndValues: any bytes make a name, and a value that is too large is refused without
// a trace.
func TestOddNamesAndValues(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	s := open(t, srv.Addr())
	l := grant(t, s, "me", time.Minute)
	for _, name := range []string{"\x00", "a\nb", "@session", "%2F", "ünicode", strings.Repeat("long", 1000)} {
		p := claim(t, l, name)
		if got := line(t, s, name); !p.Held || got.Holder == nil || got.Holder.Owner != "me" || got.Name != name {
			t.Errorf("name %q: place %+v, line %+v", name, p, got)
		}
	}
	for _, size := range []int{1600 << 10, 4 << 20} { // above etcd's own limit, and above gRPC's
		big := driver.Claim{Name: "big", ID: "big" + strconv.Itoa(size), Value: make([]byte, size)}
		_, err := l.Claim(soon(t), big)
		if !errors.Is(err, driver.ErrRefused) || strings.Contains(err.Error(), "\n") {
			t.Errorf("Claim with %d bytes = %v, want ErrRefused", size, err)
		}
	}
	if p := claim(t, l, "big"); !p.Held {
		t.Errorf("claim after one that was refused = %+v, want it held", p)
	}
	if _, err := s.Grant(soon(t), "x", 301*time.Second); !errors.Is(err, driver.ErrRefused) {
		t.Errorf("Grant of 301 s = %v, want ErrRefused", err)
	}
	for ttl, want := range map[time.Duration]time.Duration{time.Millisecond: 300 * time.Millisecond,
		1234567 * time.Microsecond: 1235 * time.Millisecond, 2 * time.Second: 2 * time.Second, 2500 * time.Millisecond: 3 * time.Second} {
		if got := grant(t, s, "x", ttl).TTL(); got != want {
			t.Errorf("Grant of %v has %v, want %v", ttl, got, want)
		}
	}
}
