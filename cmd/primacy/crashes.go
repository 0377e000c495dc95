package main

import (
	"context"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/handover"
)

// runHistory is how many terms of an election 'primacy run' keeps at least: a command that crashes
// in a loop must not push out what happened before.
const runHistory = 1000

// How a command that crashes in a loop is seen.
const (
	crashLimit  = 2 * time.Second // for the look at the history
	crashesRead = 100             // terms, of all hosts
)

// waitAfterCrashes waits before this process stands, where its command failed soon after its start
// the last times that this host led. Only what this host did counts, so that a bad deploy here
// holds up nobody else. Where nothing is known nothing is waited for.
func waitAfterCrashes(ctx context.Context, r *runner) error {
	if r.lock || r.backoff <= 0 {
		return nil
	}
	limit, cancel := context.WithTimeout(ctx, min(crashLimit, r.timeout))
	past, err := r.session.Election(r.name).History(limit, crashesRead)
	cancel()
	if err != nil {
		return nil
	}
	n, last := crashes(past, r.session.ID())
	wait := crashWait(n, r.backoff, time.Since(last.To))
	if wait <= 0 {
		return nil
	}
	r.say("%s failed on this host %d %s in a row, soon after its start: %s; it stands again in %v (--backoff)",
		clean(r.name), n, plural(n, "time", "times"), clean(last.Text), wait.Round(time.Millisecond))
	waitMS := wait.Milliseconds()
	r.report(event{Event: "backoff", WaitMS: &waitMS})
	if r.wait > 0 && r.wait <= wait {
		pause(ctx, r.wait)
		return errWaited
	}
	pause(ctx, wait)
	r.spent = wait
	return nil
}

// crashes returns how many of the last terms of the candidate's host ended since its work failed
// soon after its start, and the last of them. Terms are the newest first; those of other hosts do
// not count.
func crashes(past []primacy.TermRecord, id string) (n int, last primacy.TermRecord) {
	for _, t := range past {
		if t.ID != id && (handover.HostOf(t.ID) == "" || handover.HostOf(t.ID) != handover.HostOf(id)) {
			continue
		}
		lasted, known := t.Lasted()
		if t.Reason != primacy.Failed || !known || lasted > crashTerm {
			break
		}
		if n++; n == 1 {
			last = t
		}
	}
	return n, last
}

// crashTerm is how short a term is that counts as a crash.
const crashTerm = 30 * time.Second

// crashWait is how long to wait after n crashes, the last of which was so long ago.
func crashWait(n int, most, ago time.Duration) time.Duration {
	if n == 0 || most <= 0 {
		return 0
	}
	wait := min(most, time.Second<<min(n-1, 20))
	return min(wait, wait-ago) // a clock that was set back makes it no longer
}
