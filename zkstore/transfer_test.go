package zkstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/zkstore"
)

// One request holds a megabyte.
func TestATransferPassesMoreThanOneRequestHolds(t *testing.T) {
	srv := shared(t)
	s := stopAtEnd(t, openAt(t, srv.Addr()))
	name := strings.Repeat("n", 9000)
	const ttl = 20 * time.Second
	holder, crowd, last := grantAt(t, s, "holder", ttl), grantAt(t, s, "crowd", ttl), grantAt(t, s, "successor", ttl)
	for _, l := range []driver.Lease{holder, crowd, last} {
		keep(t, l)
	}
	p := enterAt(t, holder, name, "first")
	const many = 150
	var claims []driver.Claim
	for i := range many {
		claims = append(claims, driver.Claim{Name: name, ID: fmt.Sprint("c", i), Seat: fmt.Sprint(i)})
	}
	if _, err := crowd.Claim(within(t, time.Minute), claims...); err != nil {
		t.Fatal(err)
	}
	successor := enterAt(t, last, name, "successor")
	if err := holder.(driver.Transferer).Transfer(within(t, time.Minute), p, successor.Token); err != nil {
		t.Fatalf("Transfer: %v", err)
	}
	if _, err := drivertest.Await(within(t, time.Minute), last, successor); err != nil {
		t.Errorf("Wait of the successor: %v", err)
	}
	told := map[string]bool{}
	for len(told) < many {
		news, err := crowd.News(within(t, time.Minute))
		if err != nil {
			t.Fatalf("News after %d of %d: %v", len(told), many, err)
		}
		for _, n := range news {
			told[n.Place.ID] = n.Gone
		}
	}
}

// A transfer that fails keeps no record for whatever ends the place later.
func TestATransferThatFailsLeavesNoRecord(t *testing.T) {
	srv := shared(t)
	s := stopAtEnd(t, openAt(t, srv.Addr()))
	name := t.Name()
	l := grantAt(t, s, "a", 20*time.Second)
	p := enterAt(t, l, name, "one")
	p.Journal, p.Record = name, &driver.Record{Key: "k", Value: []byte("handed over")}
	if err := l.(driver.Transferer).Transfer(within(t, time.Minute), p, p.Token+1000); !errors.Is(err, driver.ErrNoSuccessor) {
		t.Fatalf("Transfer = %v, want ErrNoSuccessor", err)
	}
	enterAt(t, l, name, "two") // displaces it
	if all, err := s.(driver.Journal).Records(within(t, time.Minute), name, "", 10); err != nil || len(all) != 0 {
		t.Errorf("records = %+v, %v, want none", all, err)
	}
}

func TestATransferObeysItsContextWhileItMakesAJournal(t *testing.T) {
	srv := shared(t)
	p := newFaultProxy(t, srv.Addr())
	s := stopAtEnd(t, openAt(t, p.addr()))
	name := t.Name()
	l, other := grantAt(t, s, "a", 20*time.Second), grantAt(t, s, "b", 20*time.Second)
	mine, successor := enterAt(t, l, name, "one"), enterAt(t, other, name, "two")
	mine.Journal, mine.Record = name, &driver.Record{Key: "k"}
	p.decide(func(opcode int32, request string) fate {
		if opcode != opMulti && strings.Contains(request, "/@journal/"+name) {
			return swallow
		}
		return pass
	})
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- l.(driver.Transferer).Transfer(ctx, mine, successor.Token) }()
	select {
	case err := <-done:
		if err == nil {
			t.Error("Transfer = nil")
		}
	case <-time.After(10 * time.Second):
		t.Error("Transfer goes on 10 s after its context ended after half a second")
	}
}

// The successor leaves between the look at the line and the step that hands over: the holder holds
// on, and looks again.
func TestATransferToOneWhoHasJustLeftChangesNothing(t *testing.T) {
	srv := shared(t)
	s := stopAtEnd(t, openAt(t, srv.Addr()))
	name := t.Name()
	l, other := grantAt(t, s, "a", 20*time.Second), grantAt(t, s, "b", 20*time.Second)
	p, q := enterAt(t, l, name, "one"), enterAt(t, other, name, "two")
	again, err := zkstore.HandOverTo(l, p, "/primacy/"+name+"/left")
	if err != nil || !again {
		t.Errorf("the last step = %v, %v, want another look at the line", again, err)
	}
	ln, err := s.Line(within(t, time.Minute), name)
	if err != nil || ln.Holder == nil || ln.Holder.Token != p.Token {
		t.Errorf("Line = %+v, %v, want the holder as before", ln, err)
	}
	if err := l.(driver.Transferer).Transfer(within(t, time.Minute), p, q.Token); err != nil {
		t.Errorf("Transfer to one who waits: %v", err)
	}
}

// During a transfer the end of the place is no news, for it is the owner's doing. If the transfer
// fails, whatever ends the place later is news again: a leader who did not hear of it would lead on
// beside the next.
func TestTheEndOfAPlaceIsToldAfterATransferThatFailed(t *testing.T) {
	srv := shared(t)
	s := stopAtEnd(t, openAt(t, srv.Addr()))
	name := t.Name()
	l := grantAt(t, s, "a", 20*time.Second)
	keep(t, l)
	p := enterAt(t, l, name, "one")
	if _, err := zkstore.HandOverTo(l, p, "/primacy/"+name+"/left"); err != nil {
		t.Fatal(err)
	}
	other := stopAtEnd(t, openAt(t, srv.Addr())).(driver.Admin)
	if err := other.RemoveClaim(within(t, time.Minute), name, p.Token); err != nil {
		t.Fatal(err)
	}
	news, err := l.News(within(t, time.Minute))
	if err != nil || len(news) != 1 || !news[0].Gone || news[0].Place.Token != p.Token {
		t.Errorf("News = %+v, %v, want the place gone", news, err)
	}
}

// The session lives on without its store, until it expires, and its places with it.
func TestAReleaseAfterTheStoreWasClosedIsNotConfirmed(t *testing.T) {
	srv := shared(t)
	s := openAt(t, srv.Addr())
	l, err := s.Grant(within(t, time.Minute), "a", 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprint(t.Name(), time.Now().UnixNano()) // it outlives the test
	p := enterAt(t, l, name, "one")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.Release(within(t, time.Minute), p); err == nil {
		t.Error("Release after Close = nil, though the place stands")
	}
	ln, err := stopAtEnd(t, openAt(t, srv.Addr())).Line(within(t, time.Minute), name)
	if err != nil || ln.Holder == nil || ln.Holder.Token != p.Token {
		t.Errorf("Line = %+v, %v, want the place in it: otherwise this test proves nothing", ln, err)
	}
}
