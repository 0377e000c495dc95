package shards

import (
	"cmp"
	"slices"
)

// Plan returns for each shard the ID of the member that should own it, "" if nobody can. Holders
// has, for each shard, the ID of the member that owns it now, "" if nobody does; an ID that is not
// among members counts as nobody.
//
// Each member that can take shards gets a quota: its part of the shards by weight, within one. A
// shard whose holder is within its quota stays where it is, so no plan moves fewer shards. The
// others go to the members with room, by rendezvous hashing. The result depends on nothing else:
// no clock, no order of members, and a plan that was carried out plans nothing more.
//
// A member that drains or is not ready has the quota 0. If no member is ready, readiness counts for
// nothing: it is the check that is broken, and nothing should move. A member that is Away keeps
// what it holds and gets nothing. A member gets no shard that it avoids.
func Plan(holders []string, members []Member) []string {
	sorted := slices.Clone(members)
	slices.SortStableFunc(sorted, func(a, b Member) int { return cmp.Compare(a.ID, b.ID) })
	in, place := plan{held: make([]int, len(holders))}, map[string]int{}
	for i, m := range sorted {
		in.members = append(in.members, planMember{id: m.ID, weight: m.Weight, ready: m.Ready, drains: m.Draining,
			away: m.Away, avoid: m.Avoid})
		if _, twice := place[m.ID]; !twice {
			place[m.ID] = i
		}
	}
	for i, id := range holders {
		in.held[i] = nobody
		if at, known := place[id]; known && id != "" {
			in.held[i] = at
		}
	}
	target := make([]string, len(holders))
	for i, at := range in.target() {
		if at != nobody {
			target[i] = sorted[at].ID
		}
	}
	return target
}

const (
	nobody   = -1 // nobody holds the shard
	stranger = -2 // somebody holds it who is no member: it is no part of the plan
)

// plan is the input of the planner. Members are in an order that does not depend on when they came.
type plan struct {
	members []planMember
	held    []int  // for each shard the place of its holder in members, nobody or stranger
	rest    []bool // shards that moved a short time ago: others are given away first. May be nil
}

type planMember struct {
	id                  string
	weight              int
	ready, drains, away bool
	avoid               []int

	quota, load int
	takes       bool   // it can get shards
	hash        uint64 // of the ID
}

// target returns for each shard the place of the member that should own it, nobody, or stranger.
func (p *plan) target() []int {
	p.prepare()
	target := slices.Clone(p.held)
	var free []int
	for i, at := range p.held {
		switch {
		case at == nobody:
			free = append(free, i)
		case at != stranger:
			p.members[at].load++
		}
	}
	if !slices.ContainsFunc(p.members, func(m planMember) bool { return m.takes }) {
		return target // nobody can take anything: who holds a shard keeps it
	}
	for _, i := range p.surplus(len(free)) {
		p.members[target[i]].load--
		target[i] = nobody
		free = append(free, i)
	}
	slices.Sort(free)
	for _, i := range free {
		if target[i] = p.taker(i); target[i] != nobody {
			p.members[target[i]].load++
		}
	}
	return target
}

// prepare sets who takes shards, and the quotas.
func (p *plan) prepare() {
	anyReady := slices.ContainsFunc(p.members, func(m planMember) bool { return m.ready && !m.drains && !m.away })
	for i := range p.members {
		m := &p.members[i]
		m.hash, m.load, m.quota = hashText(m.id), 0, 0
		m.weight = max(1, m.weight)
		m.takes = !m.drains && !m.away && (m.ready || !anyReady)
	}
	for _, at := range p.held {
		if at >= 0 {
			p.members[at].load++
		}
	}
	p.setQuotas()
	for i := range p.members {
		p.members[i].load = 0 // target counts again
	}
}

// setQuotas gives each member its part by weight, rounded down, and one more to those with the
// largest remainders. Of equal remainders those win who hold more than the rounded part already, so
// that nothing moves for the sake of rounding. Load says how much each holds.
func (p *plan) setQuotas() {
	type share struct {
		at, floor int
		remainder int64
	}
	var shares []share
	total, left := int64(0), int64(0)
	for _, at := range p.held {
		if at != stranger {
			left++
		}
	}
	for _, m := range p.members {
		if m.takes || m.away {
			total += int64(m.weight)
		}
	}
	shards := left
	for i, m := range p.members {
		if m.takes || m.away {
			part := shards * int64(m.weight)
			shares = append(shares, share{i, int(part / total), part % total})
			left -= part / total
		}
	}
	slices.SortFunc(shares, func(a, b share) int {
		m, n := p.members[a.at], p.members[b.at]
		return cmp.Or(-cmp.Compare(a.remainder, b.remainder), -cmp.Compare(m.load-a.floor, n.load-b.floor),
			cmp.Compare(m.hash, n.hash), cmp.Compare(a.at, b.at))
	})
	for i, s := range shares {
		q := s.floor
		if int64(i) < left {
			q++
		}
		p.members[s.at].quota = q
	}
}

// surplus returns the shards that their holders should give away: all of a member that takes none,
// and what is beyond the quota of one that does. Free is how many shards nobody holds: they come
// first, and only what there is room for besides is taken from a member over its quota.
func (p *plan) surplus(free int) (give []int) {
	room := -free
	for _, m := range p.members {
		if m.takes {
			room += max(0, m.quota-m.load)
		}
	}
	over := make([][]int, len(p.members))
	for i, at := range p.held {
		if at < 0 || p.members[at].away {
			continue
		}
		if m := p.members[at]; !m.takes {
			give = append(give, i)
			room--
		} else if m.load > m.quota {
			over[at] = append(over[at], i)
		}
	}
	for at, all := range over {
		m := p.members[at]
		slices.SortFunc(all, func(a, b int) int {
			return cmp.Or(cmp.Compare(p.rests(a), p.rests(b)), cmp.Compare(m.score(a), m.score(b)), cmp.Compare(a, b))
		})
		n := max(0, min(m.load-m.quota, len(all), room))
		give = append(give, all[:n]...)
		room -= n
	}
	return give
}

func (p *plan) rests(shard int) int {
	if p.rest != nil && p.rest[shard] {
		return 1
	}
	return 0
}

// taker returns who gets a free shard: of those with room the one with the highest score. If nobody
// has room who does not avoid it, it is whoever has the least load for his weight: a shard that
// somebody could own must not stay without an owner for the sake of balance.
func (p *plan) taker(shard int) int {
	best, least := nobody, nobody
	for i, m := range p.members {
		if !m.takes || slices.Contains(m.avoid, shard) {
			continue
		}
		if m.load < m.quota && (best == nobody || m.score(shard) > p.members[best].score(shard)) {
			best = i
		}
		if least == nobody || m.load*p.members[least].weight < p.members[least].load*m.weight {
			least = i
		}
	}
	if best == nobody {
		return least
	}
	return best
}

// score is the weight of the member for that shard in rendezvous hashing.
func (m planMember) score(shard int) uint64 { return mix(m.hash + mix(uint64(shard)+1)) }

// hashText is FNV-1a, 64 bits. Together with mix it must stay as it is: members of two releases in
// one group would plan differently, and a change of the assigner would move shards.
func hashText(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return mix(h)
}

// mix is the finalizer of SplitMix64: each bit of x changes half of the bits of the result.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
