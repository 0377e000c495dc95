package primacy

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// many stands for the names of all elections at once, and again after some of the terms.
func (a *actor) many(ctx context.Context) {
	names := a.f.names[:2]
	es := a.p.sess.Elections(&ElectionsOptions{Value: []byte("v")})
	if err := es.Stand(names...); err != nil {
		a.judged("Stand", err)
		return
	}
	_, impatient := ctx.Deadline()
	for term, err := range es.Terms(ctx) {
		switch {
		case term == nil:
			a.judged("Stand", err)
		case err != nil:
			a.f.judge.count("many: terms told to have ended")
		default:
			a.f.judge.count("many: terms")
			r := a.f.judge.won(term, a.p, a.rnd.IntN(3) == 0)
			b := &actor{f: a.f, p: a.p, name: term.Name(), rnd: rand.New(rand.NewPCG(a.rnd.Uint64(), 6))}
			a.f.actors.Go(func() {
				b.serve(term, r)
				if b.rnd.IntN(2) == 0 {
					b.judged("Stand", es.Stand(b.name))
				}
			})
		}
		if !impatient {
			break
		}
		switch name := names[a.rnd.IntN(2)]; a.rnd.IntN(6) {
		case 0:
			es.Withdraw(name)
		case 1:
			es.Withdraw(name)
			a.judged("Stand", es.Stand(name))
		}
	}
	closing, cancel := context.WithTimeout(context.Background(), upTo(a.rnd, 10*time.Second))
	defer cancel()
	a.judged("Close", es.Close(closing))
	if err := closing.Err(); err == nil {
		a.f.judge.count("many: closed in time")
	}
}

// Follow needs no network: what it leads to comes as News.
func (l *wireLease) Follow(places ...driver.Place) {
	if !l.p.dead.Load() {
		l.Lease.Follow(places...)
	}
}

// judgeNews judges news that a place is held.
func (l *frontLease) judgeNews(news []driver.News) {
	l.f.mu.Lock()
	defer l.f.mu.Unlock()
	for _, n := range news {
		if n.Held {
			l.f.holds(l.owner, n.Place)
		}
	}
}
