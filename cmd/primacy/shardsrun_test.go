//go:build linux

package main

import (
	"os"
	"syscall"
	"testing"
)

func TestSignalsFromBeforeACommandAreForgotten(t *testing.T) {
	signals := make(chan os.Signal, 16)
	signals <- syscall.SIGUSR1
	signals <- syscall.SIGINT
	if forgetSignals(signals); len(signals) != 0 {
		t.Errorf("%d signals would reach the command", len(signals))
	}
}
