//go:build linux

package torture

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
)

// fault is a kind of fault of the long torture.
type fault struct {
	name    string
	network bool // needs network namespaces
	// inject does harm to the cluster, or to the line's leader, and undoes it. It returns what was
	// done in particular (it replaces the name if it is not empty), or errMissed if there was
	// nobody to inject it into.
	inject func(s *torture, l *line, rng *rand.Rand) (what string, err error)
}

// lane is a row of faults, one after another. The lanes run beside each other, so that faults of
// different kinds meet.
type lane struct {
	name  string
	kinds []fault
	most  time.Duration // between two faults
	line  int           // all of them are for this line, counted from 1; 0: any
	// elections: only for lines whose leaders can be asked to hand over.
	elections bool
}

func lanes() []lane {
	return []lane{
		{name: "members", kinds: memberFaults(), most: 500 * time.Millisecond},
		{name: "processes", kinds: processFaults(), most: 1500 * time.Millisecond},
		{name: "links", kinds: linkFaults(), most: 1500 * time.Millisecond},
	}
}

// appointment is one fault of the schedule.
type appointment struct {
	fault fault
	pause time.Duration // before it
	line  int
	rng   *rand.Rand
}

// schedule returns the endless row of a lane's faults: a function of the seed, as are their
// parameters. Every kind comes once before any comes again. When each begins depends on how long
// those before took.
func (la lane) schedule(seed uint64, number, lines int, possible func(fault) bool) func() appointment {
	rng := rand.New(rand.NewPCG(seed, uint64(number+1)))
	var row []fault
	begun := false
	return func() appointment {
		// All kinds are drawn everywhere, or a machine without namespaces would have another
		// schedule.
		for {
			if len(row) == 0 {
				row = slices.Clone(la.kinds)
				rng.Shuffle(len(row), func(i, k int) { row[i], row[k] = row[k], row[i] })
				if !begun { // the first of the lane comes first, so that a short run has it
					i := slices.IndexFunc(row, func(h fault) bool { return h.name == la.kinds[0].name })
					row[0], row[i], begun = row[i], row[0], true
				}
			}
			a := appointment{row[0], time.Duration(rng.Int64N(int64(la.most))), rng.IntN(lines),
				rand.New(rand.NewPCG(rng.Uint64(), 0))}
			row = row[1:]
			if la.line > 0 {
				a.line = la.line - 1
			}
			if possible(a.fault) {
				return a
			}
		}
	}
}

// injectFaults runs the lanes for that long. It returns when the last fault has been undone.
func (s *torture) injectFaults(lanes []lane, d time.Duration) {
	time.AfterFunc(d, func() { close(s.stop) })
	var wg sync.WaitGroup
	for i, la := range lanes {
		wg.Go(func() { s.follow(la, la.schedule(s.seed, i, len(s.lines), s.possible)) })
	}
	wg.Wait()
}

func (s *torture) possible(h fault) bool {
	return (s.network != nil || !h.network) && (s.small != nil || h.name != diskFull)
}

func (s *torture) follow(la lane, next func() appointment) {
	for !s.over() {
		a := next()
		s.pause(a.pause)
		l := s.lines[a.line]
		for i := a.line; la.elections && !l.asked(); i++ {
			l = s.lines[i%len(s.lines)]
		}
		if leader, _ := s.await(l, 10*time.Second); leader == nil || s.over() {
			continue
		}
		from := boottime.Now()
		what, err := a.fault.inject(s, l, a.rng)
		if what == "" {
			what = a.fault.name
		}
		if err != nil {
			s.mu.Lock()
			s.missed[fmt.Sprintf("%s: %v", what, err)]++
			s.mu.Unlock()
			continue
		}
		s.record(what, l.name, from)
	}
}

func needNetwork() (names []string) {
	for _, la := range lanes() {
		for _, h := range la.kinds {
			if h.network && !slices.Contains(names, h.name) {
				names = append(names, h.name)
			}
		}
	}
	return names
}

// between returns a duration of that range.
func between(rng *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(rng.Int64N(int64(most-least)))
}
