package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/k8stest"
)

const (
	// What an operator says.
	begins = "begins"          // the leader's work
	asked  = "is asked to end" // the same
	ended  = "has ended"       // the same
	filled = "has filled"      // its cache
	itself = "this process ends itself"

	stopped = 300 * time.Millisecond // what the leader's work takes to stop
)

// short has the times of a lease that a test waits for. A tenth of Duration is for clocks' rates.
var short = times{10 * time.Second, 6 * time.Second, time.Second}

// span is after which time since a renewal nothing of the leader's work is left.
const span = 9 * time.Second

// Operators are replaced one by one, each when the next stands by with its cache filled: that leads
// as soon as the work of the one before has returned, and not before.
func TestRollingUpdate(t *testing.T) {
	srv := k8stest.Start(t)
	rounds := 12
	if testing.Short() {
		rounds = 3
	}
	srv.Do("POST", k8stest.Leases, `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"over",
		"annotations":{"example.com/ttl":"1ms"}}}`)
	old := start(t, srv, settings{Takes: stopped})
	old.says(begins)
	var took []time.Duration
	for range rounds {
		next := start(t, srv, settings{Takes: stopped})
		synced := next.says(filled)
		asksToEnd := boottime.Now()
		old.term()
		began, before := next.says(begins), old.says(ended)
		if began < before {
			t.Fatalf("the next began %v before the work of the one before it had ended", before-began)
		}
		if synced > asksToEnd {
			t.Errorf("its cache was filled %v after the old one was asked to end", synced-asksToEnd)
		}
		took = append(took, (began - before).Round(100*time.Microsecond))
		old.ends()
		old = next
	}
	t.Logf("from the end of the work to the begin of the next: %v", took)
	for end := time.Now().Add(time.Minute); bytes.Contains(srv.Do("GET", k8stest.Leases, ""), []byte(`"over"`)); {
		if time.Now().After(end) {
			t.Fatal("the operator does not do its work")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// A standby that is asked to end does, without a term and without an error of its election.
func TestAStandbyEnds(t *testing.T) {
	srv := k8stest.StartFake(t)
	leads := start(t, srv, settings{})
	leads.says(begins)
	standby := start(t, srv, settings{})
	standby.says(filled)
	standby.term()
	standby.ends()
	if text := standby.LogTail(); strings.Contains(text, begins) || strings.Contains(text, "retrieving") {
		t.Errorf("it said:\n%s", text)
	}
}

// Where the leader is killed the next leads when the lease has run out.
func TestKilled(t *testing.T) {
	slow(t)
	srv := k8stest.Start(t)
	old := start(t, srv, settings{Lease: short})
	old.says(begins)
	next := start(t, srv, settings{Lease: short})
	next.says(filled)
	killed := boottime.Now()
	old.Kill()
	took := next.says(begins) - killed
	t.Logf("the next led %v after the kill, with a lease of %v renewed each %v", took, short.Duration, short.Retry)
	if took < short.Duration-2*short.Retry {
		t.Error("that is too early for the lease to have run out")
	}
}

// A leader that is cut off from the API server has its work end RenewDeadline after the last
// renewal, whoever else takes his time to stop. Work that does not end is ended with the process.
func TestCutOff(t *testing.T) {
	slow(t)
	for says, s := range map[string]settings{
		"leadership of elections/operator is lost": {Takes: stopped},
		// Others take longer than there is time.
		itself: {Takes: stopped, Lingers: time.Minute},
		// The work hangs, and the manager gives up.
		"may still run": {Hangs: true, Patient: 100 * time.Millisecond},
	} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			srv := k8stest.Start(t)
			s.Lease = short
			old := start(t, srv, s)
			old.says(begins)
			next := start(t, srv, settings{Lease: short})
			next.says(filled)
			cut := boottime.Now()
			old.path.Hold()
			told, gone, began := old.says(asked)-cut, old.ends()-cut, next.says(begins)-cut
			work := old.when(ended) - cut
			if s.Hangs {
				work = gone
			}
			t.Logf("after the cut the work was asked to end at %v, gone at %v, the process at %v; the next began at %v",
				told, work, gone, began)
			if told > span || work > span || work > began {
				t.Error("the work went on too long")
			}
			if !strings.Contains(old.LogTail(), says) {
				t.Errorf("it does not say %q", says)
			}
		})
	}
}

// A leader that stood still for longer than its lease ends when it goes on, with its work.
func TestPaused(t *testing.T) {
	slow(t)
	srv := k8stest.Start(t)
	old := start(t, srv, settings{Lease: short, Hangs: true})
	old.says(begins)
	next := start(t, srv, settings{Lease: short})
	next.says(filled)
	old.Stop()
	next.says(begins)
	went := boottime.Now()
	old.Cont()
	t.Logf("the process ended %v after it went on", old.ends()-went)
	if !strings.Contains(old.LogTail(), itself) {
		t.Error("it does not say why")
	}
}

// A manager whose own elector gives up waits for nothing: the Lease is kept until the process ends.
func TestTheElectorInTheManagerGivesUp(t *testing.T) {
	srv := k8stest.Start(t)
	o := start(t, srv, settings{Hasty: true})
	o.ends()
	if !strings.Contains(o.LogTail(), "may still run") {
		t.Error("what it started is not waited for, and it does not say so")
	}
	host, err := os.Hostname()
	lease := string(srv.Do("GET", k8stest.Leases+"/operator", ""))
	if err != nil || !strings.Contains(lease, host+"_") {
		t.Errorf("the Lease is released, %v:\n%s", err, lease)
	}
}

// The tests can see the difference: by its own election a manager waits for nobody when leadership
// is lost.
func TestControl(t *testing.T) {
	slow(t)
	srv := k8stest.Start(t)
	old := start(t, srv, settings{Lease: short, Takes: stopped, Plain: true})
	old.says(begins)
	old.path.Hold()
	old.ends()
	if old.when(ended) != 0 {
		t.Error("the work was waited for: what docs/kubernetes.md says of controller-runtime is not true any more")
	}
}

func slow(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for leases to run out: without -short")
	}
	t.Parallel()
}
