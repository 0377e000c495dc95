//go:build linux

package cron

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/supervise"
	"github.com/primacy-go/primacy/memstore"
)

// TestMain makes the test binary its own guardian.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == supervise.GuardianArg {
		supervise.GuardianMain(nil)
	}
	os.Exit(m.Run())
}

// A command whose claim somebody has removed is killed at once, not after stop_timeout: another
// process may have the claim already, and run the command. So is one that was told to stop before.
func TestACommandWhoseClaimIsGoneIsKilledAtOnce(t *testing.T) {
	t.Run("running", func(t *testing.T) { loseTheClaim(t, false) })
	t.Run("stopping", func(t *testing.T) { loseTheClaim(t, true) })
}

func loseTheClaim(t *testing.T, stopping bool) {
	const grace, soon = 45 * time.Second, 20 * time.Second
	st := memstore.New(memstore.Options{})
	s, err := primacy.NewSession(st, &primacy.Options{ID: "p", TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context())
	sup, err := supervise.New()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	j := DefaultJob()
	j.Name, j.Spec, j.StopTimeout = "j", "* * * * *", grace
	j.Command = []string{"/bin/sh", "-c", "cd " + dir + "; trap ': >told' TERM; : >runs; while :; do sleep 0.1; done"}
	job, err := j.Check()
	if err != nil {
		t.Fatal(err)
	}
	c := &Commands{Supervisor: sup, ID: s.ID(), Env: os.Environ(), Stdout: os.Stdout, Stderr: os.Stderr}
	h, err := SessionClaims{s}.Try(t.Context(), "cron/j")
	if err != nil {
		t.Fatal(err)
	}
	ended, stop := make(chan Ended, 1), make(chan struct{})
	go func() { ended <- c.Run(stop, h, Run{Job: job, ID: ID{time.Now(), 1}, Name: "r", Claim: "cron/j"}) }()
	await := func(file string) {
		for end := time.Now().Add(soon); ; time.Sleep(time.Millisecond) {
			if _, err := os.Stat(filepath.Join(dir, file)); err == nil {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("the command did not make the file %s", file)
			}
		}
	}
	await("runs")
	want := Lost
	if stopping {
		close(stop)
		await("told")
		want = Stopped
	}
	if err := st.RemoveClaim(t.Context(), "cron/j", uint64(h.(TermHold).Term.ClaimToken())); err != nil {
		t.Fatal(err)
	}
	select {
	case e := <-ended:
		if e.Verdict != want || e.Late != 0 {
			t.Errorf("got %+v, want %s", e, want)
		}
	case <-time.After(soon):
		t.Errorf("the command runs %v after its claim was removed", soon)
		<-ended
	}
}

// A command that ended by itself just as it was told to stop is recorded as what it did: recorded
// as stopped, it would run again.
func TestWhatEndedByItselfIsToldAsItEnded(t *testing.T) {
	for _, why := range []string{Stopped, TimedOut, Replaced, Lost} {
		e := ending{why: why, text: "told to stop"}
		for code, want := range map[int]string{0: OK, 3: Failed} {
			if got := e.ended(supervise.Status{Cause: supervise.CauseExited, Code: code}, nil); got.Verdict != want ||
				got.Code != code {
				t.Errorf("told to stop (%s), it had exited with %d: %+v, want %s", why, code, got, want)
			}
		}
		if why == Lost {
			continue
		}
		if got := e.ended(supervise.Status{Cause: supervise.CauseStopped}, nil); got.Verdict != why {
			t.Errorf("stopped: %+v, want %s", got, why)
		}
	}
}
