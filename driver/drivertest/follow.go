package drivertest

import (
	"testing"

	"github.com/primacy-go/primacy/driver"
)

var followClauses = []Clause{
	{Name: "a place that is followed is told when it is held, and nobody else", Check: followHeld},
	{Name: "a place that is followed too late is told so as well", Check: followLate},
	{Name: "a followed place that is removed is told gone and not held", Check: followRemoved},
	{Name: "a followed place that is released is told nothing", Check: followReleased},
	{Name: "all followed places are told when one lease before them ends", Check: followMany},
	{Name: "a followed place that is passed over in a transfer is told gone and not held", Check: followTransfer},
	{Name: "readers that are followed are told together", Check: followReaders},
	{Name: "a place that is followed while its client is cut off is told afterwards", Check: followCutOff},
}

// toldHeld fits the news that p is held, under the token it waited with.
func toldHeld(p driver.Place) func(heard) bool {
	return func(n heard) bool {
		got := n.news.Place
		return n.news.Held && got.Held && got.Name == p.Name && got.ID == p.ID && got.Token == p.Token
	}
}

func followHeld(t *testing.T, h Harness) {
	need(t, open(t, h).Caps().FIFO, "a store with a line")
	leases, places := queue(t, h, unique(), 4)
	var all []<-chan heard
	for i, l := range leases[1:] {
		l.Follow(places[i+1])
		all = append(all, listening(t, l))
	}
	silent(t, "news while another holds", all[0])
	for i := range all {
		release(t, leases[i], places[i])
		hear(t, "that the place is held", all[i], toldHeld(places[i+1]))
		for _, later := range all[i:] {
			silent(t, "news of one who waits on, or told again", later)
		}
	}
}

func followLate(t *testing.T, h Harness) {
	leases, places := queue(t, h, unique(), 2)
	ch := listening(t, leases[1])
	release(t, leases[0], places[0])
	silent(t, "news of a place that nobody followed", ch)
	leases[1].Follow(places[1])
	hear(t, "that the place is held", ch, toldHeld(places[1]))
}

func followRemoved(t *testing.T, h Harness) {
	need(t, open(t, h).Caps().FIFO, "a store with a line")
	need(t, h.Remove != nil, "Harness.Remove")
	name := unique()
	leases, places := queue(t, h, name, 3)
	for _, i := range []int{1, 2} {
		leases[i].Follow(places[i])
	}
	first, second := listening(t, leases[1]), listening(t, leases[2])
	h.Remove(t, name, places[1].Token)
	release(t, leases[0], places[0])
	hear(t, "that the place was removed", first, func(n heard) bool {
		if n.news.Held {
			t.Errorf("news = %+v of a place that was removed before its turn", n.news)
		}
		return gone(places[1])(n)
	})
	hear(t, "that the next one holds", second, toldHeld(places[2]))
	silent(t, "more news of what is gone", first)
}

func followReleased(t *testing.T, h Harness) {
	leases, places := queue(t, h, unique(), 2)
	leases[1].Follow(places[1])
	ch := listening(t, leases[1])
	release(t, leases[1], places[1])
	release(t, leases[0], places[0])
	silent(t, "news of a place that its owner released", ch)
	leases[1].Follow(places[1])
	silent(t, "news of a place that its owner released before", ch)
}

func followMany(t *testing.T, h Harness) {
	first, second := grant(t, open(t, h), "a"), grant(t, open(t, h), "b")
	const n = 150
	var want []driver.Place
	for _, l := range []driver.Lease{first, second} {
		var claims []driver.Claim
		for i := range n {
			if l == second {
				claims = append(claims, driver.Claim{Name: want[i].Name, ID: unique()})
			} else {
				claims = append(claims, driver.Claim{Name: unique(), ID: unique()})
			}
		}
		places, err := l.Claim(soon(t), claims...)
		if err != nil {
			t.Fatalf("Claim of %d names: %v", n, err)
		}
		want = places
	}
	second.Follow(want...)
	ch := listening(t, second)
	if err := first.Close(soon(t)); err != nil {
		t.Fatalf("Close: %v", err)
	}
	told := map[string]bool{}
	hear(t, "that each place is held", ch, func(got heard) bool {
		if told[got.news.Place.ID] || !got.news.Held {
			t.Errorf("news = %+v, want each place told once, and held", got.news)
		}
		told[got.news.Place.ID] = true
		return len(told) == n
	})
}

func followTransfer(t *testing.T, h Harness) {
	leases, places := handingQueue(t, h, unique(), 4)
	var all []<-chan heard
	for i := 1; i < 4; i++ {
		leases[i].Follow(places[i])
		all = append(all, listening(t, leases[i]))
	}
	transfer(t, h, leases[0], places[0], places[3].Token)
	for i := range 2 {
		hear(t, "that the place was passed over", all[i], func(n heard) bool {
			if n.news.Held {
				t.Errorf("news = %+v of a place that was passed over", n.news)
			}
			return gone(places[i+1])(n)
		})
	}
	hear(t, "that the successor holds", all[2], toldHeld(places[3]))
}

func followReaders(t *testing.T, h Harness) {
	needShared(t, h)
	name := unique()
	w := share(t, h, name, 0)
	a, b, last := share(t, h, name, driver.Unlimited), share(t, h, name, driver.Unlimited), share(t, h, name, 0)
	var all []<-chan heard
	for _, s := range []stand{a, b, last} {
		s.l.Follow(s.p)
		all = append(all, listening(t, s.l))
	}
	release(t, w.l, w.p)
	hear(t, "that the first reader holds", all[0], toldHeld(a.p))
	hear(t, "that the second reader holds", all[1], toldHeld(b.p))
	silent(t, "news of the writer behind them", all[2])
	release(t, a.l, a.p)
	silent(t, "news of the writer while one reads", all[2])
	release(t, b.l, b.p)
	hear(t, "that the writer holds", all[2], toldHeld(last.p))
}

func followCutOff(t *testing.T, h Harness) {
	need(t, h.Cut != nil, "Harness.Cut")
	name := unique()
	leases, places := queue(t, h, name, 1)
	far, cut := openCut(t, h)
	l := grant(t, far, "b")
	p := enter(t, l, name)
	cut(true)
	l.Follow(p)
	ch := listening(t, l)
	release(t, leases[0], places[0])
	silent(t, "news across a cut", ch)
	cut(false)
	hear(t, "that the place is held", ch, toldHeld(p))
}
