package shards

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/primacy-go/primacy"
)

// What members write into the store. Golden tests hold it: members of two releases read each other.

// shardName returns the name of a shard's election.
func shardName(group string, shard int) string { return fmt.Sprintf("%s/%04d", group, shard) }

// shardNumber returns which shard of the group an election is; ok: it is one.
func shardNumber(group, name string) (shard int, ok bool) {
	digits, ok := strings.CutPrefix(name, group+"/")
	if !ok || len(digits) != 4 {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 16)
	return int(n), err == nil
}

// record is what a member announces in the group's line.
type record struct {
	Shards   int    `json:"shards"` // how many the group has
	Instance string `json:"instance"`
	Weight   int    `json:"weight"`
	Ready    bool   `json:"ready"`
	Draining bool   `json:"draining,omitempty"`
	Avoid    []int  `json:"avoid,omitempty"` // shards that it gave up because its handler returned
	Value    []byte `json:"value,omitempty"`
	Plan     []byte `json:"plan,omitempty"` // only of the assigner: an encoded announcement
}

func (r record) encode() []byte {
	b, err := json.Marshal(r)
	if err != nil {
		panic(err) // numbers, booleans and bytes only
	}
	return b
}

func decodeRecord(b []byte) (r record, err error) {
	if err := json.Unmarshal(b, &r); err != nil {
		return r, fmt.Errorf("what is no member's record (%w)", err)
	}
	if r.Shards < 1 || r.Shards > MaxShards {
		return r, fmt.Errorf("what is no member's record (%d shards)", r.Shards)
	}
	return r, nil
}

// announcement is a plan as the assigner announces it.
type announcement struct {
	epoch primacy.Token // the token of the assigner's term
	seq   uint64        // grows with each announcement of the epoch
	takes []take        // shards that nobody owns, by shard
	moves []move        // by shard
}

// take says who should own a shard that nobody owns. A member is named by the token of its claim in
// the group's line.
type take struct {
	shard int
	to    primacy.Token
}

// move says that a shard goes from its owner to another member.
type move struct {
	shard  int
	owner  primacy.Token // of the owner's term of the shard
	to     primacy.Token // of the new member's claim in the group's line
	reason Reason
	asked  bool // the owner was asked to hand over
}

// newer says whether a is of a later assigner than b, or a later one of the same. A plan that is
// not newer than one that was followed before must not be followed: its assigner leads no more, or
// the store has shown an old state.
func (a announcement) newer(b announcement) bool {
	return a.epoch > b.epoch || a.epoch == b.epoch && a.seq > b.seq
}

// doneBefore returns the shards whose moves are done between a and a later announcement of the same
// assigner: their new owners stay named for a while.
func (a announcement) doneBefore(next announcement) (all []int) {
	if a.epoch != next.epoch {
		return nil
	}
	for _, m := range a.moves {
		if slices.Contains(next.takes, take{m.shard, m.to}) {
			all = append(all, m.shard)
		}
	}
	return all
}

// wants returns the shards that the member with one of these claims should stand for.
func (a announcement) wants(mine []primacy.Token) map[int]bool {
	all := map[int]bool{}
	for _, t := range a.takes {
		if slices.Contains(mine, t.to) {
			all[t.shard] = true
		}
	}
	for _, m := range a.moves {
		if slices.Contains(mine, m.to) {
			all[m.shard] = true
		}
	}
	return all
}

// format is the first byte of an encoded announcement.
const format = 1

// encode returns the announcement in at most limit bytes, and how many takes are in it: the last
// ones are left out if there is no room. Moves always have room: see movesMost.
//
//	format, epoch, seq
//	number of members, the token of each less the one before
//	number of moves; of each: shard, owner, place of the member, reason and whether it was asked
//	for each member: number of takes, each shard less the one before
//
// All are unsigned varints. It takes about a byte for each take.
func (a announcement) encode(limit int) (b []byte, takes int) {
	for n := len(a.takes); ; n -= n/8 + 1 {
		a.takes = a.takes[:max(0, n)]
		if b := a.encodeAll(); len(b) <= limit || n <= 0 {
			return b, len(a.takes)
		}
	}
}

func (a announcement) encodeAll() []byte {
	var tokens []primacy.Token
	for _, t := range a.takes {
		tokens = append(tokens, t.to)
	}
	for _, m := range a.moves {
		tokens = append(tokens, m.to)
	}
	slices.Sort(tokens)
	tokens = slices.Compact(tokens)
	b := []byte{format}
	put := func(n uint64) { b = binary.AppendUvarint(b, n) }
	put(uint64(a.epoch))
	put(a.seq)
	put(uint64(len(tokens)))
	last := primacy.Token(0)
	for _, t := range tokens {
		put(uint64(t - last))
		last = t
	}
	put(uint64(len(a.moves)))
	for _, m := range a.moves {
		at, _ := slices.BinarySearch(tokens, m.to)
		put(uint64(m.shard))
		put(uint64(m.owner))
		put(uint64(at))
		flags := uint64(slices.Index(reasons[:], m.reason)) << 1
		if m.asked {
			flags |= 1
		}
		put(flags)
	}
	for _, t := range tokens {
		var of []int
		for _, k := range a.takes {
			if k.to == t {
				of = append(of, k.shard)
			}
		}
		slices.Sort(of)
		put(uint64(len(of)))
		before := 0
		for _, s := range of {
			put(uint64(s - before))
			before = s
		}
	}
	return b
}

var errPlan = errors.New("not a plan")

// decodeAnnouncement reads what encode has made. Shards is how many the group has.
func decodeAnnouncement(b []byte, shards int) (a announcement, err error) {
	if len(b) == 0 || b[0] != format {
		return a, errPlan
	}
	b = b[1:]
	get := func(most uint64) uint64 {
		n, k := binary.Uvarint(b)
		if k <= 0 || n > most {
			err = errPlan
			b = nil
			return 0
		}
		b = b[k:]
		return n
	}
	const any = ^uint64(0)
	top := uint64(shards - 1)
	a.epoch, a.seq = primacy.Token(get(any)), get(any)
	tokens := make([]primacy.Token, get(uint64(len(b))))
	last := primacy.Token(0)
	for i := range tokens {
		last += primacy.Token(get(any))
		tokens[i] = last
	}
	for range get(uint64(len(b))) {
		m := move{shard: int(get(top)), owner: primacy.Token(get(any))}
		at, flags := get(uint64(len(tokens))), get(uint64(len(reasons)*2-1))
		if err != nil || int(at) == len(tokens) {
			return a, errPlan
		}
		m.to, m.reason, m.asked = tokens[at], reasons[flags>>1], flags&1 == 1
		a.moves = append(a.moves, m)
	}
	for _, t := range tokens {
		shard := uint64(0)
		for range get(uint64(len(b))) {
			if shard += get(top); err != nil || shard > top {
				return a, errPlan
			}
			a.takes = append(a.takes, take{int(shard), t})
		}
	}
	slices.SortFunc(a.takes, func(x, y take) int { return x.shard - y.shard })
	return a, err
}

// absence is what a member leaves in the journal of its group if it will be back: its shards wait
// for it.
type absence struct {
	ID     string        `json:"id"`
	At     time.Time     `json:"at"` // by the wall clock of the member
	Grace  time.Duration `json:"grace"`
	Weight int           `json:"weight"`
	Shards []byte        `json:"shards"` // each less the one before, as unsigned varints
	// Back says that the member has come back, under the claim of the record's key. Its shards wait
	// for it only while it is there: if it crashes now, nobody waits for it.
	Back  bool          `json:"back,omitempty"`
	token primacy.Token // of its claim in the group's line: from the record's key
	after primacy.Token // the newest claim in that line as it left: the record's place in the journal
}

// absences is how many are kept in the journal of a group.
const absences = 256

// journalName returns the name of a group's journal.
func journalName(group string) string { return "shards/" + group }

// key returns the key of the record. Keys are in the order in which members leave and come back, as
// far as tokens tell: the journal keeps the greatest only, and by the token of the own claim alone
// it would forget at once who has been there longest. A member comes back under a claim before it
// leaves under it.
func (a absence) key() string {
	if a.Back {
		return fmt.Sprintf("%020d", uint64(a.token))
	}
	return fmt.Sprintf("%020d-left-%d", uint64(max(a.after, a.token)), uint64(a.token))
}

func packShards(all []int) []byte {
	var b []byte
	last := 0
	for _, s := range slices.Sorted(slices.Values(all)) {
		b = binary.AppendUvarint(b, uint64(s-last))
		last = s
	}
	return b
}

func unpackShards(b []byte, shards int) (all []int) {
	at := 0
	for len(b) > 0 {
		n, k := binary.Uvarint(b)
		if k <= 0 || n > uint64(shards) {
			return all
		}
		b = b[k:]
		if at += int(n); at >= shards {
			return all
		}
		all = append(all, at)
	}
	return all
}
