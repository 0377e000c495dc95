package etcdstore_test

import (
	"crypto/rand"
	"strconv"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/etcdstore"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/servertest"
)

// TestAChangeOfLeaderMovesTheSession: a leader that was paused may revoke, as it wakes up, every
// lease it knew. After a change of leader the next renewal has moved all claims to a lease that
// it never knew; tokens and order stay.
func TestAChangeOfLeaderMovesTheSession(t *testing.T) {
	servertest.Long(t, "race-library")
	t.Parallel()
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	c := plainClient(t, cluster.Endpoints()...)
	s := open(t, cluster.Endpoints()...)
	l, other := grant(t, s, "mover", time.Minute), grant(t, s, "waiter", time.Minute)
	var places []driver.Place
	for range 250 { // more than fit in one Txn
		places = append(places, claim(t, l, rand.Text()))
	}
	p := claim(t, l, "moved")
	turn := waiting(t, other, claim(t, other, "moved"))
	first, err := strconv.ParseInt(l.ID(), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	before := line(t, s, "moved")

	lead := cluster.WaitLeader()
	for _, m := range cluster.Members {
		if m != lead {
			cluster.MoveLeader(m)
			break
		}
	}
	for _, x := range []driver.Lease{l, other} {
		eventually(t, "a renewal under the new leader", time.Minute, func() bool { return x.Renew(soon(t)) == nil })
	}
	// What the old leader would do.
	if _, err := c.Revoke(soon(t), clientv3.LeaseID(first)); err != nil {
		t.Fatalf("revoke the first lease: %v", err)
	}
	after := line(t, s, "moved")
	if after.Holder == nil || after.Holder.Token != p.Token || after.Holder.Lease != l.ID() ||
		after.Holder.Owner != "mover" ||
		string(after.Holder.Value) != "v" || after.Holder.Note != "" {
		t.Errorf("holder = %+v, want it as before: %+v", after.Holder, before.Holder)
	}
	for _, q := range places {
		if h := line(t, s, q.Name).Holder; h == nil || h.Token != q.Token {
			t.Fatalf("holder of one of many = %+v, want token %d", h, q.Token)
		}
	}
	if err := l.Renew(soon(t)); err != nil {
		t.Errorf("Renew after the first lease was revoked: %v", err)
	}
	if err := l.Update(soon(t), p, []byte("new")); err != nil {
		t.Errorf("Update: %v", err)
	}
	if err := s.Ask(soon(t), "moved", driver.Request{Token: p.Token, By: "x"}); err != nil {
		t.Errorf("Ask: %v", err)
	}
	if news, err := l.News(soon(t)); err != nil || len(news) != 1 || news[0].Request == nil {
		t.Errorf("News = %+v, %v, want the request", news, err)
	}
	select {
	case err := <-turn:
		t.Fatalf("Wait returned while another holds: %v", err)
	default:
	}
	// Closing ends the lease that the claims are on now, at once.
	if err := l.Close(soon(t)); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, "Wait", turn, 5*time.Second); err != nil {
		t.Error(err)
	}
	if h := line(t, s, places[0].Name).Holder; h != nil {
		t.Errorf("holder after Close = %+v, want none", h)
	}
}

// TestALeaderThatWakesUpEndsNoTerm pauses etcd's leader for longer than the ttl, with its peers
// in reach, while a lease is renewed through the others. It must not be gone before the end of
// what its last renewal promised. The plain keepalive beside it shows, in about one pause of
// five, what happens otherwise.
func TestALeaderThatWakesUpEndsNoTerm(t *testing.T) {
	servertest.Long(t, "race-library")
	t.Parallel()
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	const ttl = 3 * time.Second
	accepted := 0
	for round := 0; round < 2 || accepted < 10 && round < 8; round++ { // on a busy machine a lease may end in one
		lead := cluster.WaitLeader()
		var others []string
		for _, m := range cluster.Members {
			if m != lead {
				others = append(others, m.Endpoint())
			}
		}
		healthy := plainClient(t, others...)
		verified := newSubject(t, others[0], "woken", ttl, false)
		plain := newSubject(t, others[0], "woken plain", ttl, true)
		lead.Stop()
		wake := time.AfterFunc(5*time.Second, lead.Cont)
		done := make(chan struct{}, 2)
		for _, s := range []*subject{verified, plain} {
			go func() { s.renewFor(7*time.Second, time.Second); done <- struct{}{} }()
		}
		<-done
		<-done
		wake.Stop()
		lead.Cont()
		for name, s := range map[string]*subject{"woken": verified, "woken plain": plain} {
			if resp, err := healthy.Get(soon(t), "primacy/"+etcdstore.Escape(name)+"/"+s.lease.ID()); err == nil &&
				len(resp.Kvs) == 0 {
				s.gone = boottime.Now()
			}
		}
		n := len(verified.accepted)
		t.Logf("round %d: verified: %d of %d accepted; plain: %d of %d, gone early: %v", round, n, verified.tried,
			len(plain.accepted), plain.tried, plain.gone != 0 && plain.worst() > 0)
		accepted += n
		if verified.gone != 0 && verified.worst() > 0 {
			t.Errorf("the claim was gone %v before the end of what a verified renewal promised", verified.worst())
		}
		for _, s := range []*subject{verified, plain} {
			_ = s.lease.Close(soon(t))
		}
	}
	if accepted < 10 {
		t.Errorf("only %d verified renewals were accepted", accepted)
	}
}
