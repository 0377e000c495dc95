package drivertest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
)

var transferClauses = []Clause{
	{Name: "a transfer makes the named claim lead out of turn", Check: transferOutOfTurn},
	{Name: "a transfer to the next in line passes over nobody", Check: transferNext},
	{Name: "those passed over in a transfer hear of it and can stand again", Check: transferTells},
	{Name: "a transfer is no news to who made it", Check: transferOwn},
	{Name: "a transfer to a claim that does not wait behind leaves the holder alone", Check: transferNoHeir},
	{Name: "a transfer to a shared claim leaves the holder alone", Check: transferShared},
	{Name: "a transfer of a place that is gone is told so", Check: transferGone},
	{Name: "a transfer of a place that does not hold the name alone is refused", Check: transferNotAlone},
	{Name: "shared claims between holder and successor go as well", Check: transferOverShared},
	{Name: "observers see nobody lead between holder and successor", Check: transferSeen},
	{Name: "a transfer whose answer was cut off can be repeated", Check: transferCutOff},
}

// transferer returns the lease as one that hands over, or skips the clause.
func transferer(t *testing.T, l driver.Lease) driver.Transferer {
	t.Helper()
	tr, ok := l.(driver.Transferer)
	need(t, ok, "a lease that can transfer")
	return tr
}

// transfer hands p over to the successor.
func transfer(t *testing.T, h Harness, l driver.Lease, p driver.Place, successor uint64) {
	t.Helper()
	if err := transferer(t, l).Transfer(soon(t), p, successor); err != nil && !h.done(err) {
		t.Fatalf("Transfer: %v", err)
	}
}

// done reports whether a Transfer was told gone because an earlier try, whose answer was lost, had
// done it. Who leads is looked at in any case.
func (h Harness) done(err error) bool { return h.Faults != nil && errors.Is(err, driver.ErrGone) }

// handingQueue is queue, where the first can transfer.
func handingQueue(t *testing.T, h Harness, name string, n int) ([]driver.Lease, []driver.Place) {
	t.Helper()
	leases, places := queue(t, h, name, n)
	transferer(t, leases[0])
	return leases, places
}

// leads fails the test unless that claim is the first of the line.
func leads(t *testing.T, h Harness, p driver.Place) {
	t.Helper()
	if got := holder(t, open(t, h), p.Name); got.Token != p.Token {
		t.Errorf("holder = %+v, want token %d", got, p.Token)
	}
}

func transferOutOfTurn(t *testing.T, h Harness) {
	name := unique()
	leases, places := handingQueue(t, h, name, 5)
	turn, behind := waiting(t, leases[3], places[3]), waiting(t, leases[4], places[4])
	silent(t, "Wait returned while another holds", turn)
	transfer(t, h, leases[0], places[0], places[3].Token)
	if p := (<-turn).must(t); p.Token != places[3].Token {
		t.Errorf("the successor = %+v, want token %d as while it waited", p, places[3].Token)
	}
	silent(t, "the one behind the successor came to hold", behind)
	ln := line(t, open(t, h), name)
	if ln.Holder == nil || ln.Holder.Token != places[3].Token || len(ln.Waiters) != 1 || ln.Waiters[0].Token != places[4].Token {
		t.Errorf("line = %+v, want the successor and the one behind it", ln)
	}
	release(t, leases[3], places[3])
	(<-behind).must(t)
}

func transferNext(t *testing.T, h Harness) {
	leases, places := handingQueue(t, h, unique(), 3)
	turn := waiting(t, leases[1], places[1])
	transfer(t, h, leases[0], places[0], places[1].Token)
	(<-turn).must(t)
	transfer(t, h, leases[1], places[1], places[2].Token) // handed on by who had it handed over
	hold(t, leases[2], places[2])
}

func transferTells(t *testing.T, h Harness) {
	name := unique()
	leases, places := handingQueue(t, h, name, 4)
	news := listening(t, leases[1])
	turn := waiting(t, leases[2], places[2])
	silent(t, "Wait returned while another holds", turn)
	transfer(t, h, leases[0], places[0], places[3].Token)
	hear(t, "the place that was passed over", news, gone(places[1]))
	wantGone(t, "Wait of one that was passed over", (<-turn).err)
	wantGone(t, "Update of one that was passed over", leases[2].Update(soon(t), places[2], nil))
	release(t, leases[2], places[2]) // is no error
	var again []driver.Place
	for _, i := range []int{1, 2, 0} { // the former holder too
		p := enter(t, leases[i], name)
		if p.Held || p.Token <= places[3].Token {
			t.Errorf("claim after the transfer = %+v, want it behind the successor", p)
		}
		again = append(again, p)
	}
	release(t, leases[3], places[3])
	hold(t, leases[1], again[0])
	silent(t, "news of the new claim", news)
}

func transferOwn(t *testing.T, h Harness) {
	leases, places := handingQueue(t, h, unique(), 2)
	ch := listening(t, leases[0])
	if err := leases[0].Update(soon(t), places[0], []byte("x")); err != nil {
		t.Fatalf("Update: %v", err)
	}
	silent(t, "news of what the owner did", ch)
	transfer(t, h, leases[0], places[0], places[1].Token)
	silent(t, "news of what the owner did", ch)
	again := func() {
		t.Helper()
		_, err := leases[0].Claim(soon(t), driver.Claim{Name: places[0].Name, ID: places[0].ID})
		wantGone(t, "Claim under the ID that was handed over", err)
	}
	again()
	release(t, leases[0], places[0]) // as who does not know whether it was handed over
	leads(t, h, places[1])
	if err := leases[0].Renew(soon(t)); err != nil {
		t.Errorf("Renew after a transfer = %v, want nil", err)
	}
	again()
	silent(t, "news of what the owner did", ch)
}

func transferNoHeir(t *testing.T, h Harness) {
	name := unique()
	leases, places := handingQueue(t, h, name, 4)
	news := listening(t, leases[0])
	release(t, leases[2], places[2])
	last := places[3].Token
	held := places[0].Token
	for _, token := range []uint64{places[2].Token, last + 1, last + 1000, 1<<64 - 1, 0, held, held - 1} {
		if err := transferer(t, leases[0]).Transfer(soon(t), places[0], token); !errors.Is(err, driver.ErrNoSuccessor) {
			t.Errorf("Transfer to token %d of %+v = %v, want ErrNoSuccessor", token, places, err)
		}
	}
	ln := line(t, open(t, h), name)
	if ln.Holder == nil || ln.Holder.Token != places[0].Token || len(ln.Waiters) != 2 {
		t.Fatalf("line = %+v, want nothing changed", ln)
	}
	if again := claim(t, leases[0], driver.Claim{Name: name, ID: places[0].ID}); again != places[0] {
		t.Errorf("the holder's claim again = %+v, want %+v", again, places[0])
	}
	own := claim(t, leases[0], driver.Claim{Name: name, Seat: "other", ID: unique()})
	if err := transferer(t, leases[0]).Transfer(soon(t), places[0], own.Token); !errors.Is(err, driver.ErrRefused) {
		t.Errorf("Transfer to a claim of the same lease = %v, want ErrRefused", err)
	}
	leads(t, h, places[0])
	silent(t, "news though nothing happened", news)
	if h.Remove != nil { // it is watched as before
		h.Remove(t, name, places[0].Token)
		hear(t, "the place that was removed by hand", news, gone(places[0]))
	}
}

func transferShared(t *testing.T, h Harness) {
	needShared(t, h)
	name := unique()
	leases, places := handingQueue(t, h, name, 1)
	r := share(t, h, name, driver.Unlimited)
	if err := transferer(t, leases[0]).Transfer(soon(t), places[0], r.p.Token); !errors.Is(err, driver.ErrNoSuccessor) {
		t.Errorf("Transfer to a shared claim = %v, want ErrNoSuccessor", err)
	}
	leads(t, h, places[0])
}

func transferGone(t *testing.T, h Harness) {
	name := unique()
	leases, places := handingQueue(t, h, name, 4)
	transfer(t, h, leases[0], places[0], places[1].Token)
	hands := func(i int, successor uint64) error {
		return transferer(t, leases[i]).Transfer(soon(t), places[i], successor)
	}
	wantGone(t, "Transfer of what was handed over", hands(0, places[1].Token))
	wantGone(t, "Transfer of what was handed over to another", hands(0, places[2].Token))
	release(t, leases[1], places[1])
	wantGone(t, "Transfer of what was released", hands(1, places[3].Token))
	leads(t, h, places[2])
	if h.Remove == nil {
		return
	}
	h.Remove(t, name, places[2].Token)
	wantGone(t, "Transfer of what was removed by hand", hands(2, places[3].Token))
	leads(t, h, places[3])
}

func transferNotAlone(t *testing.T, h Harness) {
	s := needShared(t, h)
	name := unique()
	leases, places := handingQueue(t, h, name, 3)
	refused := func(what string, l driver.Lease, p driver.Place, successor uint64) {
		t.Helper()
		if err := transferer(t, l).Transfer(soon(t), p, successor); !errors.Is(err, driver.ErrRefused) {
			t.Errorf("Transfer of %s = %v, want ErrRefused", what, err)
		}
	}
	refused("a place that waits", leases[1], places[1], places[2].Token)
	if ln := line(t, s, name); len(ln.Waiters) != 2 {
		t.Errorf("line = %+v, want nothing changed", ln)
	}
	name = unique()
	r, w := share(t, h, name, driver.Unlimited), share(t, h, name, 0)
	refused("a shared place", r.l, r.p, w.p.Token)
	leads(t, h, r.p)
}

func transferOverShared(t *testing.T, h Harness) {
	needShared(t, h)
	name := unique()
	leases, places := handingQueue(t, h, name, 2)
	r := share(t, h, name, 2)
	successor := share(t, h, name, 0)
	last := share(t, h, name, 2)
	turn, passed, behind := waiting(t, successor.l, successor.p), waiting(t, r.l, r.p), waiting(t, last.l, last.p)
	silent(t, "Wait returned while another holds", turn)
	transfer(t, h, leases[0], places[0], successor.p.Token)
	(<-turn).must(t)
	wantGone(t, "Wait of a shared claim that was passed over", (<-passed).err)
	silent(t, "a shared claim behind the successor holds beside it", behind)
	release(t, successor.l, successor.p)
	(<-behind).must(t)
}

func transferSeen(t *testing.T, h Harness) {
	for range 5 {
		name := unique()
		leases, places := handingQueue(t, h, name, 4)
		s := open(t, h)
		ctx, cancel := context.WithCancel(soon(t))
		defer cancel()
		at := line(t, s, name)
		done := make(chan error, 1)
		go func() {
			time.Sleep(time.Millisecond)
			done <- transferer(t, leases[0]).Transfer(ctx, places[0], places[3].Token)
		}()
		for at.Holder == nil || at.Holder.Token != places[3].Token {
			next, err := s.Next(ctx, name, at.Revision)
			if err != nil {
				if driver.IsFinal(err) || ctx.Err() != nil {
					t.Fatalf("Next: %v", err)
				}
				continue
			}
			if at = next; at.Holder == nil || at.Holder.Token != places[0].Token && at.Holder.Token != places[3].Token {
				t.Fatalf("line = %+v, want token %d or %d to lead at every moment", at, places[0].Token, places[3].Token)
			}
		}
		if err := <-done; err != nil && !h.done(err) {
			t.Errorf("Transfer: %v", err)
		}
	}
}

func transferCutOff(t *testing.T, h Harness) {
	need(t, h.Cut != nil, "Harness.Cut")
	name := unique()
	far, cut := openCut(t, h)
	l := grant(t, far, "a")
	tr := transferer(t, l)
	p := enter(t, l, name)
	leases, places := queue(t, h, name, 2)
	turn := waiting(t, leases[1], places[1])
	silent(t, "Wait returned while another holds", turn)
	cut(true)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := tr.Transfer(ctx, p, places[1].Token); err == nil || driver.IsFinal(err) {
		t.Errorf("Transfer of a client that is cut off = %v, want an error that leaves the outcome unknown", err)
	}
	cut(false)
	// It may be told gone: then an earlier call has done it.
	eventually(t, "the transfer that was repeated", func() bool {
		err := tr.Transfer(soon(t), p, places[1].Token)
		return err == nil || errors.Is(err, driver.ErrGone)
	})
	(<-turn).must(t)
	leads(t, h, places[1])
}
