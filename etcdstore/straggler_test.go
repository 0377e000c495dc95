package etcdstore_test

import (
	"crypto/rand"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

// TestAClaimGivenUpAndReleasedNeverEnters holds a claim's Txn back on its way, as a member that
// was frozen when it arrived would, until the claim has been given up and released through
// another member. Then the Txn is let through.
func TestAClaimGivenUpAndReleasedNeverEnters(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	for _, try := range []bool{false, true} {
		slow := etcdtest.NewProxy(t, srv.Addr())
		s := open(t, slow.Addr(), srv.Addr())
		l := grant(t, s, "a", time.Minute)
		name, id, mark := "straggler-"+rand.Text(), rand.Text(), "mark-"+rand.Text()
		other := claim(t, l, "other"+name) // in the same session; it must survive all this

		hold(slow, l, driver.Claim{Name: name, ID: id, Value: []byte(mark), Try: try}, t, mark)
		if err := l.Release(soon(t), driver.Place{Name: name, ID: id}); err != nil {
			t.Fatalf("Release: %v", err)
		}
		before := raftIndex(t, srv.Endpoint())
		slow.Heal()
		// A Txn whose compare fails changes no revision, but raft's log shows that it was executed.
		for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if ln := line(t, s, name); ln.Holder != nil {
				t.Fatalf("try %v: a ghost stands in the line: %+v", try, *ln.Holder)
			}
		}
		if got := raftIndex(t, srv.Endpoint()); got <= before {
			t.Errorf("raft index %d → %d: the Txn held back was never executed, so this test shows nothing", before,
				got)
		}
		if next := claim(t, l, name); !next.Held {
			t.Errorf("try %v: the next claim = %+v, want it held", try, next)
		}
		if err := l.Update(soon(t), other, []byte("still here")); err != nil {
			t.Errorf("the session's other claim: %v", err)
		}
		p := claim(t, l, "after"+name)
		release(t, l, p)
	}
}

// hold sends a claim into the proxy and gives it up when the proxy has it.
func hold(slow *etcdtest.Proxy, l driver.Lease, c driver.Claim, t *testing.T, mark string) {
	t.Helper()
	slow.Hold(etcdtest.Up)
	done := make(chan error, 1)
	ctx := within(t, 400*time.Millisecond)
	go func() {
		_, err := l.Claim(ctx, c)
		done <- err
	}()
	eventually(t, "the Txn in the proxy", time.Minute, func() bool { return slow.Holds(etcdtest.Up, []byte(mark)) })
	slow.Seal() // etcd must not learn that the call was given up
	if err := receive(t, "Claim", done, 5*time.Second); err == nil {
		t.Fatal("Claim = nil, but its Txn is held back")
	}
}

// TestALostAnswerIsFoundAgain: the Txn is executed, its answer is not delivered, and the claim is
// made again.
func TestALostAnswerIsFoundAgain(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	slow := etcdtest.NewProxy(t, srv.Addr())
	s := open(t, slow.Addr(), srv.Addr())
	direct := open(t, srv.Addr())
	l := grant(t, s, "a", time.Minute)
	c := driver.Claim{Name: "lost", ID: rand.Text(), Value: []byte("v")}
	slow.Hold(etcdtest.Down)
	if _, err := l.Claim(within(t, 300*time.Millisecond), c); err == nil {
		t.Fatal("Claim = nil without an answer")
	}
	stands := line(t, direct, "lost").Holder
	if stands == nil {
		t.Fatal("the claim was not executed")
	}
	p, err := l.Claim(soon(t), c)
	if err != nil || p[0].Token != stands.Token || !p[0].Held {
		t.Fatalf("Claim again = %+v, %v, want token %d held", p, err, stands.Token)
	}
	release(t, l, p[0])
	if ln := line(t, direct, "lost"); ln.Holder != nil {
		t.Errorf("line after Release = %+v, want it empty", ln)
	}
	slow.Heal()
}
