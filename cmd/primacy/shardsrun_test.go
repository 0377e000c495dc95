//go:build linux

package main

import (
	"os"
	"syscall"
	"testing"

	"github.com/primacy-go/primacy/cmd/internal/supervise"
)

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
