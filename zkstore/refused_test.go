package zkstore_test

import (
	"crypto/rand"
	"errors"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/primacy-go/primacy/driver"
)

// Claims are given up together (Elections). One of a name in which we may not delete any more must
// not keep those of other names in their lines.
func TestARefusedNameKeepsNoOtherClaimInItsLine(t *testing.T) {
	_, far, near, srv := behind(t)
	holder, waiter := grantAt(t, near, "a", 20*time.Second), grantAt(t, far, "b", 20*time.Second)
	keep(t, waiter)
	keep(t, holder)
	names := []string{rand.Text(), rand.Text()}
	var mine []driver.Place
	for _, name := range names {
		mine = append(mine, enterAt(t, holder, name, "one"))
	}
	w := enterAt(t, waiter, names[1], "two")
	waiter.Follow(w)
	c := plain(t, srv.Addr())
	if _, err := c.SetACL("/primacy/"+names[0], zk.WorldACL(zk.PermAll&^zk.PermDelete), -1); err != nil {
		t.Fatal(err)
	}
	// As Elections.releaseAll does: all in one call, each by itself after a final error.
	err := holder.Release(within(t, 3*time.Second), mine...)
	t.Logf("Release of both: %v (final: %v)", err, driver.IsFinal(err))
	err = holder.Release(within(t, time.Minute), mine[1])
	t.Logf("Release of the second alone: %v", err)
	news, err := waiter.News(within(t, time.Minute))
	if err != nil || len(news) != 1 || !news[0].Held {
		t.Errorf("who waits for the other name is told %+v, %v", news, err)
	}
	_, _ = c.SetACL("/primacy/"+names[0], zk.WorldACL(zk.PermAll), -1)
}

// A Claim that answers ErrRefused has left nothing in the line: its caller believes that.
func TestARefusedClaimLeavesNothing(t *testing.T) {
	_, far, near, srv := behind(t)
	holder, other := grantAt(t, near, "a", 20*time.Second), grantAt(t, far, "b", 20*time.Second)
	keep(t, holder)
	keep(t, other)
	name := rand.Text()
	p := enterAt(t, holder, name, "one")
	c := plain(t, srv.Addr())
	if _, err := c.SetACL("/primacy/"+name, zk.WorldACL(zk.PermAll&^zk.PermRead), -1); err != nil {
		t.Fatal(err)
	}
	_, err := other.Claim(within(t, time.Minute), driver.Claim{Name: name, ID: "two"})
	if !errors.Is(err, driver.ErrRefused) {
		t.Fatalf("Claim = %v, want it refused", err)
	}
	_, _ = c.SetACL("/primacy/"+name, zk.WorldACL(zk.PermAll), -1)
	if err := holder.Release(within(t, time.Minute), p); err != nil {
		t.Fatal(err)
	}
	ln, err := near.Line(within(t, time.Minute), name)
	if err != nil || ln.Holder != nil {
		t.Errorf("the refused claim holds the name: %+v, %v", ln.Holder, err)
	}
}

// TestAnUnreadableNameLeavesNoOtherClaimUndecided: two claims enter in one step, whose answer is
// lost, and the name of one may not be read.
func TestAnUnreadableNameLeavesNoOtherClaimUndecided(t *testing.T) {
	p, l, near := faulty(t)
	names := []string{rand.Text(), rand.Text()}
	for _, name := range names {
		hadLine(t, l, name)
	}
	c := plain(t, shared(t).Addr())
	if _, err := c.SetACL("/primacy/"+names[0], zk.WorldACL(zk.PermAll&^zk.PermRead), -1); err != nil {
		t.Fatal(err)
	}
	p.decide(once(enters, loseAnswer))
	_, err := l.Claim(within(t, time.Second), driver.Claim{Name: names[0], ID: "one"},
		driver.Claim{Name: names[1], ID: "two"})
	if err == nil {
		t.Fatal("the step's answer was not lost")
	}
	got, err := l.Claim(within(t, time.Minute), driver.Claim{Name: names[1], ID: "two"})
	if err != nil || !got[0].Held {
		t.Fatalf("Claim of the readable name = %+v, %v", got, err)
	}
	if err := l.Release(within(t, time.Minute), got...); err != nil {
		t.Fatal(err)
	}
	if ln, err := near.Line(within(t, time.Minute), names[1]); err != nil || ln.Holder != nil {
		t.Errorf("after the release the name is held by %+v, %v", ln.Holder, err)
	}
}
