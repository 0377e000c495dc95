//go:build linux

package main

import (
	"context"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/shown"
	"github.com/primacy-go/primacy/memstore"
	"github.com/primacy-go/primacy/shards"
)

// A member that was asked to leave has not failed.
func TestWhoLeavesAGroupWasStopped(t *testing.T) {
	left := &primacy.EndedError{Name: "n/0001", Token: 7, Cause: shards.ErrLeft}
	for _, began := range []bool{true, false} {
		if got := reasonOf(left, began); got != shown.Stopped {
			t.Errorf("its hooks and events hear %q", got)
		}
	}
}

func TestSignalsFromBeforeACommandAreForgotten(t *testing.T) {
	signals := make(chan os.Signal, 16)
	signals <- syscall.SIGUSR1
	signals <- syscall.SIGINT
	if forgetSignals(signals); len(signals) != 0 {
		t.Errorf("%d signals would reach the command", len(signals))
	}
}

// The lease of all shards of a process must outlive it as long as the command of one of them may
// run: others would start theirs beside it. Commands and on-elected hooks get it from here.
func TestNoGuardianOfAShardEndsTheLease(t *testing.T) {
	s, term := ownsAShard(t)
	r := newRunner(&app{store: "etcd://localhost"}, contest{name: "n"})
	if r.session = s; r.lastAction(term) == nil {
		t.Error("the guardian of a run without shards is told nothing")
	}
	if r.shard = (&shardOf{}); r.lastAction(term) != nil {
		t.Error("the guardian of a shard is told to end the lease when the process is killed")
	}
}

// ownsAShard returns a session on a store in memory, and a term of it.
func ownsAShard(t *testing.T) (*primacy.Session, *primacy.Term) {
	t.Helper()
	s, err := primacy.NewSession(memstore.New(memstore.Options{}), nil)
	if err != nil {
		t.Fatal(err)
	}
	term, err := s.Election("n/0001").Campaign(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = term.Resign(context.Background())
		_ = s.Close(context.Background())
	})
	return s, term
}

// TestASignalBeforeAShardsCommandRuns: in its hook, or in the pause before it is started again. One
// that comes once this process leaves is for the commands, and none begins after it.
func TestASignalBeforeAShardsCommandRuns(t *testing.T) {
	s, term := ownsAShard(t)
	r := newRunner(&app{}, contest{name: "n"})
	r.session = s
	g := &sharded{r: r, own: map[*runner]bool{}}
	ctx, stop := context.WithCancelCause(t.Context())
	sub := g.runnerOf(&shards.Shard{Group: "n", Number: 1, Term: term}, stop)
	sub.stop(signalled{syscall.SIGHUP})
	if err := sub.stoppedMeanwhile(ctx); err != nil {
		t.Errorf("a SIGHUP is for files that are read again: %v", err)
	}
	r.ending.Store(true)
	sub.idle(func() {
		sub.signals <- syscall.SIGTERM
		select {
		case <-ctx.Done():
		case <-time.After(time.Minute):
			t.Error("the hook goes on")
		}
	})
	if sub.stoppedMeanwhile(ctx) == nil {
		t.Error("the command begins")
	}
}
