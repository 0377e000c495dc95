package sim

import "github.com/primacy-go/primacy/cmd/internal/postgres/core"

// shared is the shared configuration in the store.
type shared struct {
	version  int // 0: there is none
	settings core.Settings
	bad      bool // nobody takes it
}

// knows is what a member knows of it. The last good one survives on its disk.
type knows struct {
	version  int // of the one that was judged last
	known    bool
	settings core.Settings
}

// configure is a person who changes the configuration, well or badly.
func (w *World) configure() {
	if w.shared.version == 0 {
		return
	}
	w.shared.version++
	w.Stats.Shared++
	if w.shared.bad = w.chance(0.1); w.shared.bad {
		return
	}
	s := &w.shared.settings
	s.Acks = 1 + w.rng.IntN(len(w.nodes))
	s.Durability = []core.Durability{core.Quorum, core.Quorum, core.Available, core.Async}[w.rng.IntN(4)]
	w.logf("the configuration is now %s with k = %d", s.Durability, s.Acks)
}

// readShared reads the configuration again and again. Whoever leads writes one where there is none.
func (a *agent) readShared() {
	var got shared
	a.call(func() {
		s := &a.w.shared
		if s.version == 0 && a.leading() {
			*s = shared{1, a.settings(), false}
			a.w.logf("%s: writes the configuration", a.n.name)
		}
		got = *s
	}, func(known bool) {
		c := &a.n.disk.shared
		if known && got.version > c.version {
			if c.version = got.version; !got.bad {
				c.known, c.settings = true, got.settings
				a.poke()
			}
		}
		a.later(a.w.between(100*ms, 1000*ms), a.readShared)
	})
}

func (a *agent) leading() bool {
	p, _ := a.m.Phase()
	return p == core.PhaseLeading && a.record != nil && a.record.Primary.Name == a.n.name
}

// settings are what the member decides by. The file's word for the durability was for the first
// record.
func (a *agent) settings() core.Settings {
	c := a.n.disk.shared
	if c.known {
		return c.settings
	}
	s := a.w.plan.settings
	if a.record != nil {
		s.Durability = a.record.Durability
	}
	return s
}
