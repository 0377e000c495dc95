package drivertest

import (
	"errors"
	"sync"
	"testing"

	"github.com/primacy-go/primacy/driver"
)

var seatClauses = []Clause{
	{Name: "a lease has a claim for each seat of a name", Check: seatsApart},
	{Name: "a claim under a new ID replaces that of its seat only", Check: seatReplaced},
	{Name: "a seat is released by its claim ID", Check: seatByID},
	{Name: "a seat that was removed by hand is told with its seat and slots", Check: seatRemoved},
}

var sharedClauses = []Clause{
	{Name: "readers hold together", Check: readersTogether},
	{Name: "a writer waits for every reader before it", Check: writerWaits},
	{Name: "readers behind a writer wait for it and then hold together", Check: readersBehind},
	{Name: "readers behind a writer that gives up hold at once", Check: writerGivesUp},
	{Name: "a line tells who of it holds and with how many slots", Check: lineTellsHeld},
	{Name: "a shared claim with another number of slots is refused and leaves nothing", Check: mixedRefused},
	{Name: "of two numbers of slots that enter at once one is refused", Check: mixedAtOnce},
	{Name: "a try of a reader holds beside readers, and behind a writer leaves nothing", Check: readerTries},
	{Name: "the next line is told when another shared claim comes to hold", Check: nextHeld},
	{Name: "a writer holds when the lease of the last reader ends", Check: readerEnds, slow: true},
}

// needShared opens a store that has shared claims, or skips the clause.
func needShared(t *testing.T, h Harness) driver.Store {
	t.Helper()
	s := open(t, h)
	need(t, s.Caps().Shared, "a store with shared claims")
	return s
}

// stand is one claim under a lease of its own.
type stand struct {
	l driver.Lease
	p driver.Place
}

// share enters a claim with so many slots under a new lease of a new client.
func share(t *testing.T, h Harness, name string, slots int) stand {
	t.Helper()
	l := grant(t, open(t, h), "s")
	return stand{l, claim(t, l, driver.Claim{Name: name, Slots: slots, ID: unique()})}
}

// holds fails the test unless the claims hold as they entered, or not.
func holds(t *testing.T, what string, want bool, all ...stand) {
	t.Helper()
	for i, s := range all {
		if s.p.Held != want {
			t.Errorf("%s %d = %+v, want held %v", what, i, s.p, want)
		}
	}
}

// waitingAll waits for all of them, each for itself.
func waitingAll(t *testing.T, all []stand) (turns []<-chan waited) {
	for _, s := range all {
		turns = append(turns, waiting(t, s.l, s.p))
	}
	return turns
}

func seatsApart(t *testing.T, h Harness) {
	s, name := needShared(t, h), unique()
	l := grant(t, s, "a")
	var claims []driver.Claim
	for _, seat := range []string{"", "1", "B2", "0123456789abcdef"} {
		claims = append(claims, driver.Claim{Name: name, Seat: seat, ID: unique()})
	}
	var places []driver.Place
	for i, c := range claims {
		places = append(places, claim(t, l, c))
		if places[i].Held != (i == 0) {
			t.Errorf("place %d = %+v, want the first only to hold", i, places[i])
		}
	}
	for i, c := range claims {
		if again := claim(t, l, c); again != places[i] {
			t.Errorf("the claim of seat %q again = %+v, want %+v", c.Seat, again, places[i])
		}
	}
	if ln := line(t, s, name); standing(ln, l.ID()) != len(claims) && s.Caps().FIFO {
		t.Errorf("line = %+v, want %d claims of lease %s", ln, len(claims), l.ID())
	}
	for i, p := range places { // they wait for each other like strangers
		if got := hold(t, l, p); got.Token != p.Token || got.Seat != p.Seat {
			t.Errorf("place %d held = %+v, want %+v", i, got, p)
		}
		release(t, l, p)
	}
	if ln := line(t, s, name); ln.Holder != nil {
		t.Errorf("line after all were released = %+v, want it empty", ln)
	}
}

func seatReplaced(t *testing.T, h Harness) {
	s, name := needShared(t, h), unique()
	l := grant(t, s, "a")
	p := claim(t, l, driver.Claim{Name: name, Slots: 2, ID: unique()})
	q := claim(t, l, driver.Claim{Name: name, Slots: 2, Seat: "2", ID: unique()})
	r := claim(t, l, driver.Claim{Name: name, Slots: 2, Seat: "2", ID: unique()})
	if !p.Held || !q.Held || !r.Held {
		t.Errorf("places = %+v, %+v, %+v, want all held: the third takes the second's slot", p, q, r)
	}
	wantOver(t, "the claim that was replaced", l, q)
	if err := l.Update(soon(t), p, []byte("x")); err != nil {
		t.Errorf("Update of the other seat: %v", err)
	}
	release(t, l, q) // late
	if ln := line(t, s, name); standing(ln, l.ID()) != 2 {
		t.Errorf("line = %+v, want two claims", ln)
	}
}

func seatByID(t *testing.T, h Harness) {
	s, name := needShared(t, h), unique()
	l := grant(t, s, "a")
	c := driver.Claim{Name: name, Slots: driver.Unlimited, Seat: "1", ID: unique()}
	claim(t, l, c)
	keeps := claim(t, l, driver.Claim{Name: name, Slots: driver.Unlimited, Seat: "2", ID: unique()})
	byID := driver.Place{Name: name, Seat: c.Seat, Slots: c.Slots, ID: c.ID}
	release(t, l, byID)
	if _, err := l.Claim(soon(t), c); err == nil {
		t.Error("Claim of an ID that was released = nil, want an error")
	}
	if got := holder(t, s, name); got.Token != keeps.Token || standing(line(t, s, name), l.ID()) != 1 {
		t.Errorf("line = %+v, want the other seat only, token %d", line(t, s, name), keeps.Token)
	}
	release(t, l, byID)
}

func seatRemoved(t *testing.T, h Harness) {
	need(t, h.Remove != nil, "Harness.Remove")
	s, name := needShared(t, h), unique()
	l := grant(t, s, "a")
	p := claim(t, l, driver.Claim{Name: name, Slots: 2, Seat: "1", ID: unique()})
	q := claim(t, l, driver.Claim{Name: name, Slots: 2, Seat: "2", ID: unique()})
	ch := listening(t, l)
	h.Remove(t, name, q.Token)
	hear(t, "the seat that was removed", ch, func(n heard) bool {
		return gone(q)(n) && n.news.Place.Seat == "2" && n.news.Place.Slots == 2
	})
	silent(t, "news of the other seat", ch)
	wantGone(t, "Update of the seat that was removed", l.Update(soon(t), q, nil))
	if got := hold(t, l, p); got.Token != p.Token {
		t.Errorf("the other seat = %+v, want token %d", got, p.Token)
	}
}

func readersTogether(t *testing.T, h Harness) {
	s, name := needShared(t, h), unique()
	var all []stand
	for range 3 {
		all = append(all, share(t, h, name, driver.Unlimited))
	}
	holds(t, "reader", true, all...)
	for i, r := range all {
		if got := hold(t, r.l, r.p); got != r.p {
			t.Errorf("Wait of reader %d = %+v, want %+v", i, got, r.p)
		}
		if i > 0 && s.Caps().Token != driver.TokenNone && r.p.Token <= all[i-1].p.Token {
			t.Errorf("token of reader %d = %d, want more than %d", i, r.p.Token, all[i-1].p.Token)
		}
		if err := r.l.Update(soon(t), r.p, []byte("x")); err != nil {
			t.Errorf("Update of reader %d: %v", i, err)
		}
	}
	for _, r := range all {
		release(t, r.l, r.p)
	}
	if ln := line(t, s, name); ln.Holder != nil {
		t.Errorf("line after all were released = %+v, want it empty", ln)
	}
}

func writerWaits(t *testing.T, h Harness) {
	needShared(t, h)
	name := unique()
	readers := []stand{share(t, h, name, driver.Unlimited), share(t, h, name, driver.Unlimited), share(t, h, name, driver.Unlimited)}
	w := share(t, h, name, 0)
	holds(t, "writer", false, w)
	turn := waiting(t, w.l, w.p)
	for _, i := range []int{1, 2, 0} { // in another order than they came
		silent(t, "the writer holds beside a reader", turn)
		release(t, readers[i].l, readers[i].p)
	}
	(<-turn).must(t)
}

func readersBehind(t *testing.T, h Harness) {
	needShared(t, h)
	name := unique()
	w := share(t, h, name, 0)
	var all []stand
	for range 3 {
		all = append(all, share(t, h, name, driver.Unlimited))
	}
	last := share(t, h, name, 0)
	holds(t, "reader behind a writer", false, all...)
	turns := waitingAll(t, all)
	turn := waiting(t, last.l, last.p)
	silent(t, "a reader holds beside the writer", turns[1])
	release(t, w.l, w.p)
	for i, r := range turns {
		if got := (<-r).must(t); got.Token != all[i].p.Token {
			t.Errorf("reader %d = %+v, want token %d", i, got, all[i].p.Token)
		}
	}
	late := share(t, h, name, driver.Unlimited)
	holds(t, "reader behind the writer that waits", false, late)
	for _, r := range all {
		silent(t, "the second writer holds beside a reader", turn)
		release(t, r.l, r.p)
	}
	(<-turn).must(t)
}

func writerGivesUp(t *testing.T, h Harness) {
	needShared(t, h)
	name := unique()
	first, w := share(t, h, name, driver.Unlimited), share(t, h, name, 0)
	all := []stand{share(t, h, name, driver.Unlimited), share(t, h, name, driver.Unlimited)}
	holds(t, "reader behind a writer that waits", false, all...)
	turns := waitingAll(t, all)
	silent(t, "a reader overtook the writer that waits", turns[0])
	release(t, w.l, w.p)
	for _, turn := range turns {
		(<-turn).must(t)
	}
	if got := hold(t, first.l, first.p); got.Token != first.p.Token {
		t.Errorf("the first reader = %+v, want it to hold as before", got)
	}
}

// ranked is what a line shows of one claim.
type ranked struct {
	lease string
	slots int
	held  bool
}

func ranks(ln driver.Line) (out []ranked) {
	if ln.Holder != nil {
		out = append(out, ranked{ln.Holder.Lease, ln.Holder.Slots, ln.Holder.Held})
	}
	for _, w := range ln.Waiters {
		out = append(out, ranked{w.Lease, w.Slots, w.Held})
	}
	return out
}

// shows fails the test unless the line of name is what want says, by each way there is to ask.
func shows(t *testing.T, s driver.Store, name string, want ...ranked) {
	t.Helper()
	lines := []driver.Line{line(t, s, name), (<-following(t, s, name, 0)).newer(t, 0)}
	all, err := s.Lines(soon(t), name)
	if err != nil {
		t.Fatalf("Lines: %v", err)
	}
	lines = append(lines, all...)
	for _, ln := range lines {
		got := ranks(ln)
		same := len(got) == len(want)
		for i := range got {
			same = same && got[i] == want[i]
		}
		if !same {
			t.Errorf("line = %+v, want %+v", got, want)
		}
	}
}

func lineTellsHeld(t *testing.T, h Harness) {
	s, name := needShared(t, h), unique()
	need(t, s.Caps().FIFO, "a store with a line")
	a, b := share(t, h, name, 2), share(t, h, name, 2)
	c, w, d := share(t, h, name, 2), share(t, h, name, 0), share(t, h, name, 2)
	rank := func(st stand, held bool) ranked { return ranked{st.l.ID(), st.p.Slots, held} }
	shows(t, s, name, rank(a, true), rank(b, true), rank(c, false), rank(w, false), rank(d, false))
	release(t, b.l, b.p)
	shows(t, s, name, rank(a, true), rank(c, true), rank(w, false), rank(d, false))
	release(t, a.l, a.p)
	release(t, c.l, c.p)
	shows(t, s, name, rank(w, true), rank(d, false))
	release(t, w.l, w.p)
	r := share(t, h, name, 2)
	shows(t, s, name, rank(d, true), rank(r, true))
}

func mixedRefused(t *testing.T, h Harness) {
	s := needShared(t, h)
	for _, two := range [][2]int{{2, 3}, {3, 2}, {2, driver.Unlimited}, {driver.Unlimited, 1}, {12, 1}, {1, 12}} {
		name := unique()
		stays := share(t, h, name, two[0])
		l := grant(t, s, "a")
		for _, try := range []bool{false, true} {
			_, err := l.Claim(soon(t), driver.Claim{Name: name, Slots: two[1], ID: unique(), Try: try})
			if !errors.Is(err, driver.ErrRefused) {
				t.Errorf("Claim with %d slots beside one with %d (try %v) = %v, want ErrRefused", two[1], two[0], try, err)
			}
		}
		free := unique() // a final answer to one of several claims leaves no try in the line
		_, err := l.Claim(soon(t), driver.Claim{Name: free, ID: unique(), Try: true},
			driver.Claim{Name: name, Slots: two[1], ID: unique()})
		// Where the first answer was lost, the repeated call finds that its try was taken back.
		final := errors.Is(err, driver.ErrRefused) || h.Faults != nil && errors.Is(err, driver.ErrGone)
		if ln := line(t, s, free); !final || ln.Holder != nil {
			t.Errorf("Claim of several, of which one is refused = %v, and leaves %+v, want no try left", err, ln.Holder)
		}
		if ln := line(t, s, name); standing(ln, l.ID()) != 0 || standing(ln, stays.l.ID()) != 1 {
			t.Errorf("line = %+v, want the first claim only", ln)
		}
		enter(t, l, name) // an exclusive claim fits into every line
		release(t, stays.l, stays.p)
		if p := claim(t, grant(t, s, "b"), driver.Claim{Name: name, Slots: two[1], ID: unique()}); p.Slots != two[1] {
			t.Errorf("Claim with %d slots where none with another number stands = %+v", two[1], p)
		}
	}
}

func mixedAtOnce(t *testing.T, h Harness) {
	s := needShared(t, h)
	one, two := grant(t, s, "a"), grant(t, open(t, h), "b")
	for range 10 {
		name := unique()
		var all sync.WaitGroup
		var errs [2]error
		var places [2][]driver.Place
		for i, l := range []driver.Lease{one, two} {
			all.Go(func() { places[i], errs[i] = l.Claim(soon(t), driver.Claim{Name: name, Slots: 2 + i, ID: unique()}) })
		}
		all.Wait()
		if (errs[0] == nil) == (errs[1] == nil) || errs[0] != nil && !errors.Is(errs[0], driver.ErrRefused) ||
			errs[1] != nil && !errors.Is(errs[1], driver.ErrRefused) {
			t.Fatalf("claims with 2 and with 3 slots at once = %v and %v, want one refused", errs[0], errs[1])
		}
		if got := ranks(line(t, s, name)); len(got) != 1 || !got[0].held {
			t.Errorf("line = %+v, want one claim that holds", got)
		}
	}
}

func readerTries(t *testing.T, h Harness) {
	s, name := needShared(t, h), unique()
	first := share(t, h, name, driver.Unlimited)
	l := grant(t, s, "a")
	c := driver.Claim{Name: name, Slots: driver.Unlimited, ID: unique(), Try: true}
	p := claim(t, l, c)
	if !p.Held {
		t.Errorf("try of a reader beside another = %+v, want it held", p)
	}
	w := share(t, h, name, 0)
	if again := claim(t, l, c); again != p {
		t.Errorf("the same try again = %+v, want %+v", again, p)
	}
	late := grant(t, s, "b")
	for range 2 {
		if _, err := late.Claim(soon(t), driver.Claim{Name: name, Slots: driver.Unlimited, ID: unique(), Try: true}); !errors.Is(err, driver.ErrTaken) {
			t.Errorf("try of a reader behind a writer that waits = %v, want ErrTaken", err)
		}
		if ln := line(t, s, name); standing(ln, late.ID()) != 0 {
			t.Errorf("line = %+v, want nothing of the try", ln)
		}
		release(t, first.l, first.p)
		release(t, l, p)
		hold(t, w.l, w.p) // and then behind one that holds
	}
}

func nextHeld(t *testing.T, h Harness) {
	s, name := needShared(t, h), unique()
	need(t, s.Caps().FIFO, "a store with a line")
	w, r := share(t, h, name, 0), share(t, h, name, driver.Unlimited)
	other := share(t, h, name, driver.Unlimited)
	at := line(t, s, name)
	next := following(t, s, name, at.Revision)
	release(t, w.l, w.p)
	for at = (<-next).newer(t, at.Revision); ; at = (<-following(t, s, name, at.Revision)).newer(t, at.Revision) {
		if got := ranks(at); len(got) == 2 {
			if got[0] != (ranked{r.l.ID(), driver.Unlimited, true}) || got[1] != (ranked{other.l.ID(), driver.Unlimited, true}) {
				t.Errorf("line after the writer's release = %+v, want both readers to hold", got)
			}
			return
		}
	}
}

func readerEnds(t *testing.T, h Harness) {
	needShared(t, h)
	name := unique()
	dies := grantFor(t, open(t, h), "mortal", h.ttl(open(t, h)))
	claim(t, dies, driver.Claim{Name: name, Slots: driver.Unlimited, ID: unique()})
	w := share(t, h, name, 0)
	hold(t, w.l, w.p)
	wantGone(t, "Renew of the lease that ended", dies.Renew(soon(t)))
}
