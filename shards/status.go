package shards

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
)

// Member is a member of a group. [Plan] reads ID, Weight, Ready, Draining, Away and Avoid.
type Member struct {
	ID       string        `json:"id"`    // of its session
	Token    primacy.Token `json:"token"` // of its claim in the group's line
	Weight   int           `json:"weight"`
	Ready    bool          `json:"ready"`
	Draining bool          `json:"draining"` // it leaves
	Away     bool          `json:"away"`     // it is being restarted, and its shards wait for it (Options.RestartGrace)
	Avoid    []int         `json:"avoid,omitempty"`
	Value    []byte        `json:"value,omitempty"`
	Owns     int           `json:"owns"`  // shards
	Quota    int           `json:"quota"` // how many it should own
}

// Owner is a shard as [Read] has seen it.
type Owner struct {
	Number  int           `json:"number"`
	ID      string        `json:"id,omitempty"`      // of the owner's session; empty: nobody owns it
	Token   primacy.Token `json:"token,omitempty"`   // of the owner's term: what a fence compares
	Value   []byte        `json:"value,omitempty"`   // Options.Value of the owner
	Target  string        `json:"target,omitempty"`  // who should own it; empty: nobody can
	Waiting []string      `json:"waiting,omitempty"` // who stands in its line behind the owner
}

// Move is a shard that goes from one living member to another.
type Move struct {
	Shard  int           `json:"shard"`
	From   string        `json:"from"`
	To     string        `json:"to"`
	Token  primacy.Token `json:"token"` // of the owner's term
	Reason Reason        `json:"reason"`
	Asked  bool          `json:"asked"` // the new member is ready, and the owner was asked to hand over
}

// Status is a group at one time.
type Status struct {
	Name     string        `json:"name"`
	Shards   []Owner       `json:"shards"`  // by number
	Members  []Member      `json:"members"` // by ID
	Moves    []Move        `json:"moves"`   // under way, by shard
	Assigner string        `json:"assigner"`
	Epoch    primacy.Token `json:"epoch"` // of the assigner's term
	AsOf     time.Time     `json:"as_of"`
}

// Unowned returns the numbers of the shards that nobody owns.
func (s Status) Unowned() (all []int) {
	for _, o := range s.Shards {
		if o.ID == "" {
			all = append(all, o.Number)
		}
	}
	return all
}

// Read returns the state of the group with that name. It needs no lease, and makes three calls on
// the store. Since these are not made at the same instant, a shard that moves between them may be
// shown as it was. The error is primacy.ErrNoLeader if the group has no members, ErrInvalid if the
// election with that name is no group, otherwise one of [primacy.Election.State].
func Read(ctx context.Context, session *primacy.Session, name string) (Status, error) {
	lines, err := session.List(ctx, name+"/")
	if err != nil {
		return Status{}, err
	}
	line, err := session.Election(name).State(ctx)
	if err != nil {
		return Status{}, err
	}
	return StatusOf(ctx, session, line, lines)
}

// StatusOf is [Read] of lines that were read before: line is that of the election with the group's
// name, lines are those of its shards, read no later; others among them do not matter. It makes one
// call on the store, which tells who is away.
func StatusOf(ctx context.Context, session *primacy.Session, line primacy.State, lines []primacy.State,
) (Status, error) {
	name := line.Name
	if line.Leader == nil {
		return Status{}, fmt.Errorf("shards %s: %w: no member runs", name, primacy.ErrNoLeader)
	}
	r, err := decodeRecord(line.Leader.Value)
	if err != nil {
		return Status{}, fmt.Errorf("shards %s: %w: it is no group of shards: %s, who has it, announces %w", name,
			primacy.ErrInvalid, line.Leader.ID, err)
	}
	gone, err := readAbsences(ctx, session.Store(), name, time.Now())
	if err != nil {
		return Status{}, err
	}
	now := observe(name, r.Shards, line, lines, gone)
	st := Status{Name: name, Shards: now.owners(), Members: []Member{}, Moves: []Move{},
		Assigner: line.Leader.ID, Epoch: line.Leader.Token, AsOf: line.AsOf}
	a, _ := decodeAnnouncement(r.Plan, r.Shards) // one that does not plan yet has none
	now.describe(&st, a)
	return st, nil
}

// GroupOf returns how many shards a group has, from the line of the election with its name; ok: it
// is a group, and has a leader that says so.
func GroupOf(line primacy.State) (n int, ok bool) {
	if line.Leader == nil || !bytes.HasPrefix(line.Leader.Value, []byte("{")) { // most names are no groups
		return 0, false
	}
	r, err := decodeRecord(line.Leader.Value)
	return r.Shards, err == nil
}

// ShardOf returns the group and the number of a shard from the name of its election; ok: it may be
// a shard's, if the group has so many.
func ShardOf(name string) (group string, shard int, ok bool) {
	at := max(0, strings.LastIndexByte(name, '/'))
	shard, ok = shardNumber(name[:at], name)
	return name[:at], shard, ok
}

// NameOf returns the name of the election of a shard.
func NameOf(group string, shard int) string { return shardName(group, shard) }

// owners returns the shards of a view as Status shows them, without targets.
func (v view) owners() []Owner {
	all := make([]Owner, len(v.shards))
	for i, s := range v.shards {
		all[i] = Owner{Number: i, ID: s.id, Token: s.token, Value: s.value}
		for _, w := range s.waiting {
			all[i].Waiting = append(all[i].Waiting, w.id)
		}
	}
	return all
}

// describe adds the members, the moves of the announcement and the targets.
func (v view) describe(st *Status, a announcement) {
	ids := map[primacy.Token]string{}
	for _, m := range v.members {
		ids[m.token] = m.id
		st.Members = append(st.Members, Member{ID: m.id, Token: m.token, Weight: m.weight, Ready: m.ready,
			Draining: m.draining, Away: m.away, Avoid: m.avoid, Value: m.value})
	}
	in := v.plan()
	taken := map[int]primacy.Token{}
	for _, t := range a.takes {
		taken[t.shard] = t.to
	}
	for _, m := range a.moves {
		if o := st.Shards[m.shard]; o.Token == m.owner {
			taken[m.shard] = m.to
			st.Moves = append(st.Moves, Move{m.shard, o.ID, ids[m.to], m.owner, m.reason, m.asked})
		}
	}
	for i, s := range v.shards {
		if at := in.held[i]; at >= 0 && s.token != 0 {
			st.Members[at].Owns++
		}
		to := slices.IndexFunc(v.members, func(m memberView) bool { return m.token == taken[i] && !m.away })
		if _, planned := taken[i]; planned && to >= 0 && (s.token == 0 || in.held[i] >= 0) {
			in.held[i] = to
		}
	}
	for i, at := range in.target() {
		switch {
		case at >= 0:
			st.Shards[i].Target = v.members[at].id
		case at == stranger:
			st.Shards[i].Target = st.Shards[i].ID
		}
	}
	for i, m := range in.members {
		st.Members[i].Quota = m.quota
	}
}

// readAbsences returns the absences of the group whose time has not passed, by the wall clock, the
// latest of each ID.
func readAbsences(ctx context.Context, store driver.Store, group string, now time.Time) ([]absence, error) {
	j, ok := store.(driver.Journal)
	if !ok {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	records, err := j.Records(ctx, journalName(group), "", absences)
	if err != nil {
		return nil, fmt.Errorf("shards %s: read who is away: %w", group, err)
	}
	return latestAbsences(records, now), nil
}

// latestAbsences returns those of a journal's records, the latest first, whose time has not passed,
// one of each ID.
func latestAbsences(records []driver.Record, now time.Time) (all []absence) {
	known := map[string]bool{}
	for _, r := range records {
		a, err := decodeAbsence(r)
		if err != nil || known[a.ID] {
			continue
		}
		known[a.ID] = true // also if its time has passed: an earlier one must not count instead
		if now.Before(a.At.Add(a.Grace)) {
			all = append(all, a)
		}
	}
	return all
}
