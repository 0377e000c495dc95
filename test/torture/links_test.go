//go:build linux

package torture

import (
	"math/rand/v2"
	"time"

	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/faults"
)

// linkFaults are done by the proxies between candidates and the members.
func linkFaults() []fault {
	return append(sharedFaults(func(f faults.Fault) bool { return f.Links }),
		fault{"late reply, then silence", false, lateThenSilence},
		fault{"connections of all cut again and again", false, cutAll},
		fault{"links of all slow and stalling", false, stallAll})
}

// each does something to all links of candidates.
func each(candidates []*candidate, do func(*etcdtest.Proxy)) {
	for _, c := range candidates {
		for _, p := range c.links {
			do(p)
		}
	}
}

func (l *line) holder() []*candidate {
	if c, _ := l.leader(); c != nil {
		return []*candidate{c}
	}
	return nil
}

// lateThenSilence delivers the replies to what was sent just before nearly a ttl late, and nothing
// after that: a lease counted from the reply is believed in for that much longer than the store
// keeps it.
func lateThenSilence(s *torture, l *line, rng *rand.Rand) (string, error) {
	h := l.holder()
	if h == nil {
		return "", errMissed
	}
	swallow := func(on bool) {
		for _, m := range h[0].meters {
			m.Swallow(on)
		}
	}
	each(h, func(p *etcdtest.Proxy) { p.Hold(etcdtest.Down) })
	// Clients that renew every third of the ttl have sent one renewal by then, and have not yet
	// given up when its answer comes.
	heard, late := between(rng, l.ttl*34/100, l.ttl*38/100), between(rng, l.ttl*56/100, l.ttl*64/100)
	time.Sleep(heard)
	swallow(true)
	time.Sleep(late - heard)
	each(h, (*etcdtest.Proxy).Heal)
	time.Sleep(l.ttl * 4 / 3)
	each(h, (*etcdtest.Proxy).Cut)
	swallow(false)
	each(h, (*etcdtest.Proxy).Heal)
	return "", nil
}

func cutAll(s *torture, l *line, rng *rand.Rand) (string, error) {
	for range 2 + rng.IntN(3) {
		each(l.candidates, func(p *etcdtest.Proxy) { p.Cut() })
		s.pause(between(rng, 0, 300*time.Millisecond))
		each(l.candidates, (*etcdtest.Proxy).Heal)
		s.pause(between(rng, 0, 500*time.Millisecond))
	}
	return "", nil
}

// stallAll has every link stop and go, each in its own time.
func stallAll(s *torture, l *line, rng *rand.Rand) (string, error) {
	each(l.candidates, func(p *etcdtest.Proxy) { p.Delay(between(rng, 0, l.ttl/15)) })
	for range 6 {
		c := l.candidates[rng.IntN(len(l.candidates))]
		p := c.links[rng.IntN(len(c.links))]
		p.Hold([]etcdtest.Dir{etcdtest.Up, etcdtest.Down}[rng.IntN(2)])
		s.pause(between(rng, 0, l.ttl/4))
		p.Heal()
	}
	each(l.candidates, (*etcdtest.Proxy).Heal)
	return "", nil
}
