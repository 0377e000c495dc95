//go:build linux

package main

import (
	"context"
	"os"
	"syscall"
	"testing"

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
	s, err := primacy.NewSession(memstore.New(memstore.Options{}), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close(context.Background()) }()
	term, err := s.Election("n").Campaign(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = term.Resign(context.Background()) }()
	r := newRunner(&app{store: "etcd://localhost"}, contest{name: "n"})
	if r.session = s; r.lastAction(term) == nil {
		t.Error("the guardian of a run without shards is told nothing")
	}
	if r.shard = (&shardOf{}); r.lastAction(term) != nil {
		t.Error("the guardian of a shard is told to end the lease when the process is killed")
	}
}
