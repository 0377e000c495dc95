package drivertest

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/primacy-go/primacy/driver"
)

var claimClauses = []Clause{
	{Name: "the first claim holds and the next waits behind it", Check: firstHolds},
	{Name: "several claims come back as places in the same order", Check: claimsInOrder},
	{Name: "the same claim ID finds its place again", Check: sameID},
	{Name: "the same claim ID entered many times at once is one place", Check: sameIDAtOnce},
	{Name: "a claim under a new ID never takes up an earlier place", Check: newID},
	{Name: "a claim under a new ID goes behind those who wait", Check: newIDBehind},
	{Name: "a try holds a free name at once", Check: tryFree},
	{Name: "a try of a held name is told so and leaves nothing in the line", Check: tryTaken},
	{Name: "the same try finds its place again", Check: tryAgain},
	{Name: "of many tries at once one holds", Check: triesAtOnce},
	{Name: "a batch with a try that fails enters nothing", Check: batchWhole},
	{Name: "a name that begins with another name has a line of its own", Check: namesApart},
	{Name: "tokens of a name grow with every claim, also after the line was empty", Check: tokensGrow},
}

func firstHolds(t *testing.T, h Harness) {
	s := open(t, h)
	name := unique()
	first, second := grant(t, s, "a"), grant(t, open(t, h), "b")
	p, q := enter(t, first, name), enter(t, second, name)
	if !p.Held || q.Held {
		t.Errorf("held = %v and %v, want the first only", p.Held, q.Held)
	}
	ln := line(t, s, name)
	if ln.Holder == nil || ln.Holder.Lease != first.ID() {
		t.Errorf("line = %+v, want lease %s to hold", ln, first.ID())
	}
	if s.Caps().FIFO && (len(ln.Waiters) != 1 || ln.Waiters[0].Lease != second.ID() || ln.Waiters[0].Token != q.Token) {
		t.Errorf("waiters = %+v, want lease %s with token %d", ln.Waiters, second.ID(), q.Token)
	}
}

func claimsInOrder(t *testing.T, h Harness) {
	s := open(t, h)
	l, other := grant(t, s, "a"), grant(t, s, "b")
	taken := unique()
	enter(t, other, taken)
	claims := []driver.Claim{{Name: unique(), ID: unique()}, {Name: taken, ID: unique()}, {Name: unique(), ID: unique()}}
	for range 2 { // also when all of it is found again
		places, err := l.Claim(soon(t), claims...)
		if err != nil || len(places) != len(claims) {
			t.Fatalf("Claim = %+v, %v, want three places", places, err)
		}
		for i, p := range places {
			if p.Name != claims[i].Name || p.ID != claims[i].ID || p.Held != (claims[i].Name != taken) {
				t.Errorf("place %d = %+v, want that of %+v, held unless taken", i, p, claims[i])
			}
		}
	}
	if places, err := l.Claim(soon(t)); err != nil || len(places) != 0 {
		t.Errorf("Claim of nothing = %v, %v, want nothing", places, err)
	}
}

func sameID(t *testing.T, h Harness) {
	s := open(t, h)
	name := unique()
	holds, waits := grant(t, s, "a"), grant(t, s, "b")
	c, d := driver.Claim{Name: name, ID: unique()}, driver.Claim{Name: name, ID: unique()}
	p, q := claim(t, holds, c), claim(t, waits, d)
	for range 3 {
		if again := claim(t, holds, c); again != p {
			t.Errorf("the place that holds, asked again = %+v, want %+v", again, p)
		}
		if again := claim(t, waits, d); again != q {
			t.Errorf("the place that waits, asked again = %+v, want %+v", again, q)
		}
	}
	ln := line(t, s, name)
	if standing(ln, holds.ID()) != 1 || s.Caps().FIFO && standing(ln, waits.ID()) != 1 {
		t.Errorf("line = %+v, want one claim each", ln)
	}
	// A place that came to hold meanwhile is found as it is now.
	release(t, holds, p)
	hold(t, waits, q)
	if again := claim(t, waits, d); !again.Held || q.Token != 0 && again.Token != q.Token {
		t.Errorf("the place asked again after its turn came = %+v, want it held with token %d", again, q.Token)
	}
}

func sameIDAtOnce(t *testing.T, h Harness) {
	s := open(t, h)
	name := unique()
	l := grant(t, s, "a")
	c := driver.Claim{Name: name, ID: unique()}
	var mu sync.Mutex
	var all sync.WaitGroup
	got := map[string]int{}
	for range 8 {
		all.Go(func() {
			places, err := l.Claim(soon(t), c)
			mu.Lock()
			defer mu.Unlock()
			got[fmt.Sprint(places, err)]++
		})
	}
	all.Wait()
	if len(got) != 1 {
		t.Errorf("the same Claim eight times at once = %v, want the same place each time", got)
	}
	if ln := line(t, s, name); standing(ln, l.ID()) != 1 {
		t.Errorf("line = %+v, want one claim", ln)
	}
}

func newID(t *testing.T, h Harness) {
	s := open(t, h)
	name := unique()
	l := grant(t, s, "a")
	p := enter(t, l, name)
	q := hold(t, l, enter(t, l, name))
	if s.Caps().Token != driver.TokenNone && q.Token <= p.Token {
		t.Errorf("token of the new ID = %d, want more than %d: it is a new term", q.Token, p.Token)
	}
	wantOver(t, "the earlier place", l, p)
	// The resign of the earlier term comes late, and must not hurt the new one.
	release(t, l, p)
	ln := line(t, s, name)
	if ln.Holder == nil || ln.Holder.Token != q.Token || standing(ln, l.ID()) != 1 {
		t.Errorf("line = %+v, want only the claim with token %d", ln, q.Token)
	}
}

func newIDBehind(t *testing.T, h Harness) {
	s := open(t, h)
	need(t, s.Caps().FIFO, "a store with a line")
	name := unique()
	l, other := grant(t, s, "a"), grant(t, open(t, h), "b")
	enter(t, l, name)
	turn := waiting(t, other, enter(t, other, name))
	if p := enter(t, l, name); p.Held {
		t.Errorf("the new ID = %+v, want it behind the one who waits", p)
	}
	(<-turn).must(t)
}

func tryFree(t *testing.T, h Harness) {
	s := open(t, h)
	name := unique()
	l := grant(t, s, "a")
	p := claim(t, l, driver.Claim{Name: name, ID: unique(), Try: true})
	if !p.Held {
		t.Errorf("try of a free name = %+v, want it held", p)
	}
	if got := holder(t, s, name); got.Token != p.Token {
		t.Errorf("holder = %+v, want token %d", got, p.Token)
	}
}

func tryTaken(t *testing.T, h Harness) {
	s := open(t, h)
	name := unique()
	holds, tries := grant(t, s, "a"), grant(t, open(t, h), "b")
	p := enter(t, holds, name)
	for range 3 {
		_, err := tries.Claim(soon(t), driver.Claim{Name: name, ID: unique(), Try: true})
		if !errors.Is(err, driver.ErrTaken) {
			t.Errorf("try of a held name = %v, want ErrTaken", err)
		}
	}
	if ln := line(t, s, name); standing(ln, tries.ID()) != 0 {
		t.Errorf("line = %+v, want no claim of the one who tried", ln)
	}
	release(t, holds, p)
	if ln := line(t, s, name); ln.Holder != nil {
		t.Errorf("line after the release = %+v, want it empty", ln)
	}
}

func tryAgain(t *testing.T, h Harness) {
	s := open(t, h)
	l, other := grant(t, s, "a"), grant(t, s, "b")
	c := driver.Claim{Name: unique(), ID: unique(), Try: true}
	p := claim(t, l, c)
	enter(t, other, c.Name) // one who waits does not make it taken
	if again := claim(t, l, c); again != p {
		t.Errorf("the same try again = %+v, want %+v", again, p)
	}
}

func triesAtOnce(t *testing.T, h Harness) {
	s := open(t, h)
	name := unique()
	const n = 6
	var all sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		l := grant(t, s, fmt.Sprint(i))
		all.Go(func() { _, errs[i] = l.Claim(soon(t), driver.Claim{Name: name, ID: unique(), Try: true}) })
	}
	all.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else if !errors.Is(err, driver.ErrTaken) {
			t.Errorf("try = %v, want nil or ErrTaken", err)
		}
	}
	// Without a line, tries may get in each other's way so that none of them holds.
	if ln := line(t, s, name); won > 1 || won == 0 && s.Caps().FIFO || won == 1 && ln.Holder == nil || len(ln.Waiters) != 0 {
		t.Errorf("%d tries hold and the line is %+v, want one and nobody behind it", won, ln)
	}
}

func batchWhole(t *testing.T, h Harness) {
	s := open(t, h)
	need(t, s.Caps().AtomicBatch, "a store whose batches happen as a whole")
	l, other := grant(t, s, "a"), grant(t, s, "b")
	a, b := unique(), unique()
	enter(t, other, b)
	_, err := l.Claim(soon(t), driver.Claim{Name: a, ID: unique(), Try: true}, driver.Claim{Name: b, ID: unique(), Try: true})
	if !errors.Is(err, driver.ErrTaken) {
		t.Errorf("batch with a try of a held name = %v, want ErrTaken", err)
	}
	for _, name := range []string{a, b} {
		if ln := line(t, s, name); standing(ln, l.ID()) != 0 {
			t.Errorf("line after the batch failed = %+v, want nothing of it", ln)
		}
	}
}

func namesApart(t *testing.T, h Harness) {
	s := open(t, h)
	l := grant(t, s, "a")
	base := unique()
	for _, end := range []string{"", "/b", "/", "/b/c", "%2Fb", " b", "b", "ö", "_b", "*", ":b", "\\", "."} {
		if ln := line(t, s, base+end); ln.Holder != nil || len(ln.Waiters) != 0 {
			t.Errorf("line of %q = %+v before its first claim, want it empty", base+end, ln)
		}
		if p := enter(t, l, base+end); !p.Held {
			t.Errorf("claim of %q = %+v, want it held: nobody else claims it", base+end, p)
		}
		if got := line(t, s, base+end).Name; got != base+end {
			t.Errorf("Line.Name = %q, want %q", got, base+end)
		}
	}
}

func tokensGrow(t *testing.T, h Harness) {
	s := open(t, h)
	need(t, s.Caps().Token != driver.TokenNone, "a store with tokens")
	name := unique()
	leases := []driver.Lease{grant(t, s, "a"), grant(t, open(t, h), "b")}
	var last uint64
	for i := range 6 {
		l := leases[i/2%2] // twice the same lease, then the other
		p := hold(t, l, enter(t, l, name))
		if p.Token <= last {
			t.Errorf("token of claim %d = %d, want more than %d", i, p.Token, last)
		}
		last = p.Token
		release(t, l, p)
	}
}

// fmtCaps prints Caps for a comparison.
func fmtCaps(c driver.Caps) string { return fmt.Sprintf("%+v", c) }
