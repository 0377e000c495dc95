package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/postgres/agent"
	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/patroni"
)

// claims is a cluster of members that only stand in its election.
type claims struct {
	*world
	at *reached
}

func newClaims(w *world) *claims {
	c := &claims{world: w}
	a := c.app("anna")
	r, done, err := (&cluster{app: a, name: "orders"}).open(w.Context(), agent.Prefix+"orders")
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(done)
	c.at = r
	return c
}

func (c *claims) app(id string) *app {
	return &app{stdout: &bytes.Buffer{}, stderr: &bytes.Buffer{}, store: c.store, id: id, ttl: 30 * time.Second,
		timeout: limit, output: "table"}
}

// stands has a member enter the line, and returns the channel of its term.
func (c *claims) stands(name string, phase core.Phase) <-chan *primacy.Term {
	c.Helper()
	s, _, done, err := c.app(name).openSession(c.Context(), primacy.Options{}, true)
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(done)
	value, err := json.Marshal(agent.Said{Phase: phase, Life: "x"})
	if err != nil {
		c.Fatal(err)
	}
	e, won := s.Election(agent.Prefix+"orders"), make(chan *primacy.Term, 1)
	go func() {
		if term, err := e.Campaign(c.Context(), &primacy.CampaignOptions{Value: value}); err == nil {
			won <- term
		}
	}()
	c.eventually(name+" stands", func() bool {
		st, err := e.State(c.Context())
		stands := err == nil && st.Leader != nil && st.Leader.ID == name
		for _, w := range st.Waiting {
			stands = stands || w.ID == name
		}
		return stands
	})
	return won
}

// record writes the cluster's record for a primary.
func (c *claims) record(primary string, token primacy.Token) {
	c.Helper()
	before, err := c.at.record.Read(c.Context())
	if err != nil {
		c.Fatal(err)
	}
	rec := core.Record{Seq: 1, Token: uint64(token), SystemID: "7",
		Primary: core.Identity{Name: primary, Incarnation: "x"}, Durability: core.Async}
	if before != nil {
		rec.Seq = before.Seq + 1
	}
	if err := c.at.record.Write(c.Context(), rec, uint64(token)); err != nil {
		c.Fatal(err)
	}
}

func (c *claims) now() clusterJSON {
	c.Helper()
	j, err := c.at.now(c.Context())
	if err != nil {
		c.Fatal(err)
	}
	return j
}

// asking is a verb that ends with ctx.
func (c *claims) asking(ctx context.Context) *asking {
	cmd := &cobra.Command{}
	cmd.SetContext(ctx)
	return &asking{cluster: c.at.cluster, wait: limit, cmd: cmd}
}

// TestASwitchoverAsksNoLaterPrimary: the primary that was looked at has ended before it could be
// asked. Its successor goes on.
func TestASwitchoverAsksNoLaterPrimary(t *testing.T) {
	c := newClaims(newWorld(t))
	first := <-c.stands("pg1", core.PhaseLeading)
	second := c.stands("pg2", core.PhaseLeading)
	c.stands("pg3", core.PhaseFollowing)
	c.record("pg1", first.Token())
	looked := c.now()
	if err := first.Resign(t.Context()); err != nil {
		t.Fatal(err)
	}
	successor := <-second
	c.record("pg2", successor.Token())
	for _, to := range []string{"", "pg3"} {
		v := c.asking(t.Context())
		v.wait = time.Second // it is waited for only if somebody was asked
		_, err := v.switchOver(c.at, looked, to, "")
		var e *exitError
		if !errors.As(err, &e) || e.code != exitNo {
			t.Errorf("to %q: got %v, want exit 1", to, err)
		}
	}
	if err := c.asking(t.Context()).restartPrimary(c.at, "pg1"); err != nil {
		t.Errorf("a restart of pg1, which has ended: %v", err)
	}
	if err := successor.Check(); err != nil || successor.Context().Err() != nil {
		t.Errorf("pg2 was asked too: %v", context.Cause(successor.Context()))
	}
}

// TestASwitchoverToAnotherThanWasAskedForIsDone: who asks by Patroni's API is told who is the
// primary then. A refusal would say that nothing was asked of anybody.
func TestASwitchoverToAnotherThanWasAskedForIsDone(t *testing.T) {
	c := newClaims(newWorld(t))
	first := <-c.stands("pg1", core.PhaseLeading)
	c.stands("pg2", core.PhaseLeading)
	third := c.stands("pg3", core.PhaseFollowing)
	c.record("pg1", first.Token())
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	go func() {
		<-first.Context().Done()
		_ = first.Resign(ctx)
		select {
		case term := <-third: // it cannot be promoted any more
			_ = term.Resign(ctx)
		case <-ctx.Done():
		}
	}()
	api := &patroniVerbs{name: "pg1", at: c.at}
	if _, err := api.Switchover(ctx, "pg2", "pg3"); !errors.As(err, new(patroni.Refused)) || first.Check() != nil {
		t.Errorf("from pg2, which is not the primary: %v", err)
	}
	now, err := api.Switchover(ctx, "pg1", "pg3")
	if err != nil || now != "pg2" {
		t.Errorf("got %q, %v, want pg2", now, err)
	}
}

// expiring is a context whose deadline comes when the test says so.
type expiring struct {
	context.Context
	over chan struct{}
}

func (e expiring) Done() <-chan struct{} { return e.over }

func (e expiring) Err() error {
	select {
	case <-e.over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// TestAVerbThatHasNoMoreTimeSaysWhatItWaitsFor: who asks by Patroni's API waits a shorter time than
// the verb would.
func TestAVerbThatHasNoMoreTimeSaysWhatItWaitsFor(t *testing.T) {
	c := newClaims(newWorld(t))
	term := <-c.stands("pg1", core.PhaseLeading)
	c.record("pg1", term.Token())
	ctx := expiring{t.Context(), make(chan struct{})}
	once := sync.OnceFunc(func() { close(ctx.over) })
	_, err := c.asking(ctx).await(c.at, "pg1 writes", func(clusterJSON) (bool, error) { once(); return false, nil })
	var e *exitError
	if !errors.As(err, &e) || e.code != exitNotAcquired {
		t.Fatalf("got %v, want exit 124", err)
	}
	if want := ": pg1 writes. It stays asked for. pg1 is the primary"; !strings.Contains(err.Error(), want) {
		t.Errorf("got %q, want it to have %q", err, want)
	}
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.asking(interrupted).await(c.at, "", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: got %v", err)
	}
}
