package main

import (
	"os"
	"slices"
	"syscall"
)

// signalled says that a signal ended the wait.
type signalled struct{ sig syscall.Signal }

func (s signalled) Error() string { return "stopped by " + s.sig.String() }

// idle does something while no command runs, and answers signals meanwhile.
func (r *runner) idle(do func()) {
	done := make(chan struct{})
	answered := make(chan struct{})
	go func() { defer close(answered); r.answerWhileWaiting(done) }()
	defer func() { close(done); <-answered }()
	do()
}

// answerWhileWaiting ends the wait on a signal that asks for it: a candidate without a command has nobody to forward it to. What else
// comes is its standby's.
func (r *runner) answerWhileWaiting(done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		case sig := <-r.signals:
			if r.ends(sig) {
				r.stop(signalled{sig.(syscall.Signal)})
			} else {
				r.standby.signal(sig.(syscall.Signal))
			}
		}
	}
}

// ends says whether a signal ends a process that has no command to forward it to. Not one that nohup, or a shell that starts
// a job in the background, made it ignore.
func (r *runner) ends(sig os.Signal) bool {
	switch sig {
	case syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM:
		return !slices.Contains(r.deaf, sig)
	}
	return false
}
