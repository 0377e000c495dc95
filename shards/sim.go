package shards

import (
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/shardsim"
)

// The simulation in test/sim plays these decisions: they are those that ship.
func init() {
	shardsim.NewMember = func(group string, n int, id, instance string) shardsim.Member {
		return &simMember{follower{name: group, n: n, id: id, instance: instance,
			log: func(slog.Level, string, ...any) {}}}
	}
	shardsim.NewAssigner = func(group string, n int, instance string, k shardsim.Knobs,
		epoch primacy.Token) shardsim.Assigner {
		o := Options{Settle: k.Settle, SettleMax: k.SettleMax, Cooldown: k.Cooldown, Moves: k.Moves,
			ReadyTimeout: k.ReadyTimeout, LeaveTimeout: k.LeaveTimeout}
		d := newDecider(n, o, epoch)
		maps.Copy(d.rest, k.Rest)
		return &simAssigner{name: group, instance: instance, d: d}
	}
	shardsim.Read = readForSim
}

type simMember struct{ follower }

// Record is shardsim.Member's.
func (m *simMember) Record(r shardsim.Record) []byte { return simRecord(m.n, m.instance, r).encode() }

func simRecord(n int, instance string, r shardsim.Record) record {
	return record{Shards: n, Instance: instance, Weight: 1, Ready: r.Ready, Draining: r.Draining, Avoid: r.Avoid}
}

// Refuses is shardsim.Member's.
func (m *simMember) Refuses(leader []byte) bool {
	r, err := decodeRecord(leader)
	return err != nil || r.Shards != m.n
}

// Follow is shardsim.Member's.
func (m *simMember) Follow(st primacy.State) error {
	_, err := m.heard(st)
	return err
}

// Plan is shardsim.Member's.
func (m *simMember) Plan() (epoch primacy.Token, number uint64, wants []bool) {
	wants = make([]bool, m.n)
	for i := range m.plan.wants(m.mine) {
		wants[i] = true
	}
	return m.plan.epoch, m.plan.seq, wants
}

// Moved is shardsim.Member's.
func (m *simMember) Moved() []int {
	moved := m.moved
	m.moved = nil
	return moved
}

// Others is shardsim.Member's.
func (m *simMember) Others(st primacy.State) bool { return m.othersIn(st) }

// Absence is shardsim.Member's.
func (m *simMember) Absence(at time.Time, grace time.Duration, owned []int) (driver.Record, bool) {
	a, ok := m.absence(at, grace, 1, owned)
	value, err := json.Marshal(a)
	return driver.Record{Key: a.key(), Value: value}, ok && err == nil
}

type simAssigner struct {
	name, instance string
	d              *decider
	publisher
	gone []absence
}

// Look is shardsim.Assigner's. It is look, without the calls.
func (a *simAssigner) Look(s shardsim.Seen) (out shardsim.Orders) {
	gone := a.gone
	if !s.Unread {
		gone = latestAbsences(s.Journal, s.Wall)
	}
	a.gone = slices.Clone(gone)
	gone = a.d.present(s.Now, gone)
	v := observe(a.name, a.d.n, s.Line, s.Lines, gone)
	for _, b := range v.returned(gone) {
		if value, err := json.Marshal(b); err == nil {
			out.Append = append(out.Append, driver.Record{Key: b.key(), Value: value})
		}
	}
	d := a.d.step(s.Now, v, s.Paused, true)
	value, untold := a.next(d.plan, simRecord(a.d.n, a.instance, s.Record), s.Restated)
	a.d.untold(untold)
	out.Value = value
	for _, m := range d.asks {
		a.d.sent(m)
		out.Asks = append(out.Asks, shardsim.Ask{Shard: m.shard, Owner: m.owner, To: v.members[v.at(m.to)].id})
	}
	out.Gap, out.Next = waits(s.Cost, d.wake-s.Now)
	return out
}

// Said is shardsim.Assigner's.
func (a *simAssigner) Said() bool { return a.said() }

func readForSim(value []byte) (out shardsim.Record, ok bool) {
	r, err := decodeRecord(value)
	if err != nil {
		return out, false
	}
	out = shardsim.Record{Shards: r.Shards, Ready: r.Ready, Draining: r.Draining, Avoid: r.Avoid}
	a, err := decodeAnnouncement(r.Plan, r.Shards)
	if err != nil {
		return out, true
	}
	for _, m := range a.moves {
		out.Moving = append(out.Moving, m.shard)
		if m.reason != Drain {
			out.Due = append(out.Due, m.shard)
		}
	}
	return out, true
}
