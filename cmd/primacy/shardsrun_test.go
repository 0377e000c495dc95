//go:build linux

package main

import (
	"os"
	"syscall"
	"testing"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/shown"
	"github.com/primacy-go/primacy/cmd/internal/supervise"
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
// run: others would start theirs beside it.
func TestNoGuardianOfAShardEndsTheLease(t *testing.T) {
	c := supervise.Command{LastAction: &supervise.LastAction{Payload: []byte("revoke")}}
	if (&shardOf{sharded: &sharded{}}).alone(&c); c.LastAction != nil {
		t.Errorf("the guardian is told to do %q when the process is killed", c.LastAction.Payload)
	}
}
