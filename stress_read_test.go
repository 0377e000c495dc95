package primacy

import (
	"math/rand/v2"
	"sync"
	"time"
)

// watcher is a reader of Observe or of Candidate.Events. It is slow, and some read nothing at all until the fight is over: neither
// may hold anybody up, and all see the latest state in the end.
type watcher struct {
	what, name string
	p          *process
	mu         sync.Mutex
	leader     *Entry
	err        error
	state      CandidateState
}

func (f *fleet) observe(p *process, name string) {
	w, seed := &watcher{what: p.m.id + " Observe", name: name, p: p}, f.rnd.Uint64()
	f.read(w, seed, func(saw func(CandidateEvent, error)) {
		for st, err := range p.sess.Election(name).Observe(f.watch) {
			saw(CandidateEvent{Leader: st.Leader}, err)
		}
	})
}

// follow reads the events of a candidate.
func (f *fleet) follow(p *process, c *Candidate, seed uint64) {
	w := &watcher{what: p.m.id + " Events", name: c.e.Name(), p: p}
	f.read(w, seed, func(saw func(CandidateEvent, error)) {
		for ev := range c.Events(f.watch) {
			saw(ev, nil)
			if (ev.Term != nil) != (ev.State == StateLeader) {
				f.judge.failf("%s: state %v, but the term is %v", w.what, ev.State, ev.Term)
			}
		}
	})
}

func (f *fleet) read(w *watcher, seed uint64, loop func(saw func(CandidateEvent, error))) {
	f.judge.mu.Lock()
	f.watchers = append(f.watchers, w)
	f.judge.mu.Unlock()
	rnd := rand.New(rand.NewPCG(seed, 7))
	f.readers.Go(func() {
		loop(func(ev CandidateEvent, err error) {
			w.mu.Lock()
			w.leader, w.err, w.state = ev.Leader, err, ev.State
			w.mu.Unlock()
			switch rnd.IntN(3) {
			case 0:
				time.Sleep(upTo(rnd, 5*time.Second))
			case 1:
				<-f.calm
			}
		})
	})
}

// checkReaders wants every reader of the term's name to hear that it leads, the slow ones some time later.
func (f *fleet) checkReaders(term *Term) {
	for _, w := range f.watchers {
		if w.p.dead.Load() || w.name != term.Name() {
			continue
		}
		for tries := 0; !w.knows(term); tries++ {
			if tries == 300 { // a reader who sleeps up to 5 s each time, and has up to feedSize events before this one
				f.judge.failf("%s of %s never saw token %d; last %+v, %v, error %v", w.what, w.name, term.Token(), w.leader, w.state, w.err)
				break
			}
			time.Sleep(time.Second)
		}
	}
}

func (w *watcher) knows(t *Term) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err == nil && w.leader != nil && w.leader.Token == t.Token() && string(w.leader.Value) == "last" && w.state == StateFollower
}
