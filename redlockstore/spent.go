package redlockstore

import "hash/maphash"

// spent knows which claim IDs were given up: a call of Claim that comes later must not enter. It forgets the oldest half of the last 200,000,
// by when every such call is over: those on the wire are bounded by the servers.
type spent struct {
	seed     maphash.Seed
	now, old map[uint64]struct{}
}

const spentHalf = 100_000

func newSpent() *spent { return &spent{seed: maphash.MakeSeed(), now: map[uint64]struct{}{}} }

func (s *spent) add(id string) {
	if len(s.now) >= spentHalf {
		s.old, s.now = s.now, map[uint64]struct{}{}
	}
	s.now[maphash.String(s.seed, id)] = struct{}{}
}

func (s *spent) has(id string) bool {
	h := maphash.String(s.seed, id)
	_, now := s.now[h]
	_, old := s.old[h]
	return now || old
}
