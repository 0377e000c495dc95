package server_test

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/primacy-go/primacy/cmd/internal/postgres/server"
	"github.com/primacy-go/primacy/internal/servertest"
)

// A walsender that is frozen keeps the SSN that it has loaded, and would release commits by it.
func TestProofThatWalsendersHaveLoadedTheSSN(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	a, b := pair(t)
	c := newNode(t, "c").up().follow(a)
	_ = b
	senders, err := a.Senders(t.Context())
	if err != nil || len(senders) != 2 {
		t.Fatalf("%+v, %v", senders, err)
	}
	frozen := 0
	for _, x := range senders {
		if x.Name == "b" {
			frozen = x.PID
		}
	}
	if err := servertest.Halt(frozen); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(frozen, syscall.SIGCONT) }()
	next := server.Sync{Names: []string{"b", "c"}, Acks: 2}
	if err := a.Proven(t.Context(), next); err == nil {
		t.Error("an SSN without a mark is proven")
	}
	must(t, "mark", func(ctx context.Context) (err error) {
		next.Mark, err = a.Mark(ctx)
		return err
	})
	a.setSync(next)
	for range 20 {
		if err := a.Proven(t.Context(), next); err == nil {
			t.Fatal("proven although a walsender is frozen")
		} else if !strings.Contains(err.Error(), "(b)") && !strings.Contains(err.Error(), "(c)") {
			t.Fatalf("the error does not say whose: %v", err)
		}
	}
	_ = syscall.Kill(frozen, syscall.SIGCONT)
	a.waits("proof", func(ctx context.Context) error { return a.Proven(ctx, next, "b") })

	// The walsender that must not be counted any more is proven by priority 0. The mark after a
	// mark is another one.
	last := next
	last.Names, last.Acks = []string{"c"}, 1
	must(t, "mark", func(ctx context.Context) (err error) {
		last.Mark, err = a.Mark(ctx)
		return err
	})
	if last.Mark <= next.Mark {
		t.Errorf("mark %d after mark %d", last.Mark, next.Mark)
	}
	if err := servertest.Halt(frozen); err != nil {
		t.Fatal(err)
	}
	a.setSync(last)
	for range 20 {
		if err := a.Proven(t.Context(), last, "b", "c"); err == nil {
			t.Fatal("proven although the walsender of a dropped standby is frozen")
		}
	}
	_ = syscall.Kill(frozen, syscall.SIGCONT)
	a.waits("proof", func(ctx context.Context) error { return a.Proven(ctx, last, "b", "c") })
	a.setSync(server.Sync{Names: []string{"c"}, Acks: 1})
	a.commit("INSERT INTO kept VALUES (1)").acknowledged(t)
	must(t, "seal", c.Seal)
	a.commit("INSERT INTO kept VALUES (2)").waiting(t, a)
}

// When commits are to wait again, they do not before the checkpointer has read the settings,
// whatever everybody else shows.
func TestCommitsWaitAgainOnlyWhenOneWasSeenToWait(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	a, b := pair(t)
	must(t, "seal", b.Seal)
	waits := a.commit("INSERT INTO kept VALUES (1)")
	waits.waiting(t, a)
	a.setSync(server.Sync{Alone: true})
	waits.acknowledged(t)
	pid := a.process("checkpointer")
	if err := servertest.Halt(pid); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
	set := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { set <- a.SetSync(ctx, server.Sync{Names: []string{"b"}, Acks: 1}) }()
	a.waits("the SSN is loaded", func(context.Context) error {
		if a.sql("SHOW synchronous_standby_names") == "" {
			return errors.New("not yet")
		}
		return nil
	})
	a.commit("INSERT INTO kept VALUES (2)").acknowledged(t) // which is what the proof is for
	select {
	case err := <-set:
		t.Fatalf("set although commits do not wait: %v", err)
	default:
	}
	_ = syscall.Kill(pid, syscall.SIGCONT)
	if err := <-set; err != nil {
		t.Fatal(err)
	}
	late := a.commit("INSERT INTO kept VALUES (3)")
	late.waiting(t, a)
	b.follow(a)
	late.acknowledged(t)
}

func TestTheFormOfAnSSN(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		y    server.Sync
		want string
	}{
		{server.Sync{}, `ANY 1 (primacy_nobody)`},
		{server.Sync{Alone: true}, ``},
		{server.Sync{Names: []string{"b@1", `x"y`}, Acks: 2}, `ANY 2 ("b@1", "x""y")`},
		{server.Sync{Names: []string{"b", "c"}, Acks: 1, Mark: 2}, `FIRST 1 (primacy_1, primacy_2, "b", "c")`},
	} {
		if got := c.y.String(); got != c.want {
			t.Errorf("%+v is %s, want %s", c.y, got, c.want)
		}
	}
	n := newNode(t, "a").up().promote(2)
	for _, y := range []server.Sync{
		{Names: []string{"*"}, Acks: 1}, {Names: []string{"b", "B"}, Acks: 1}, {Names: []string{"b"}},
		{Names: []string{"b"}, Acks: 2}, {Names: []string{"primacy_x"}, Acks: 1}, {Names: []string{"b"}, Alone: true},
		{Mark: 1}, {Names: []string{""}, Acks: 1},
	} {
		if err := n.SetSync(t.Context(), y); err == nil {
			t.Errorf("%+v was set", y)
		}
	}
	// PostgreSQL reads what we quote.
	n.setSync(server.Sync{Names: []string{`it's "a\b", 1`, "x"}, Acks: 1})
	if got := n.sql("SHOW synchronous_standby_names"); got != `ANY 1 ("it's ""a\b"", 1", "x")` {
		t.Errorf("PostgreSQL has loaded %s", got)
	}
}
