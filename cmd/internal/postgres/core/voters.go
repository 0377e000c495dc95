package core

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Sync is a value of synchronous_standby_names (SSN).
type Sync struct {
	Kind  SyncKind
	Names []string // sorted, as [Identity.String] writes them; for SyncAny
	Acks  int      // how many of them must have flushed a commit; for SyncAny
}

// SyncKind is the form of a [Sync].
type SyncKind int

const (
	SyncNobody SyncKind = iota // names a standby that does not exist: no commit is acknowledged
	SyncAny                    // any Acks of Names
	SyncAlone                  // empty: a commit waits for nobody
)

// AnyOf returns the SSN that names these members, or [SyncNobody] where there are none.
func AnyOf(members []Identity, acks int) Sync {
	if len(members) == 0 {
		return Sync{}
	}
	s := Sync{Kind: SyncAny, Acks: max(1, min(acks, len(members)))}
	for _, m := range members {
		s.Names = append(s.Names, m.String())
	}
	slices.Sort(s.Names)
	return s
}

func (s Sync) equal(t Sync) bool {
	return s.Kind == t.Kind && s.Acks == t.Acks && slices.Equal(s.Names, t.Names)
}

func (s Sync) String() string {
	switch s.Kind {
	case SyncNobody:
		return "nobody"
	case SyncAlone:
		return "alone"
	}
	return fmt.Sprintf("any %d of %s", s.Acks, strings.Join(s.Names, ","))
}

// needed returns the least q with k + q > |V ∪ S| for one SSN: then each set of q voters holds one
// of the k members that have flushed any acknowledged commit.
func (s Sync) needed(voters []Identity) int {
	if s.Kind == SyncNobody {
		return 1 // nothing is acknowledged under it
	}
	union := slices.Clone(s.Names)
	for _, v := range voters {
		if !slices.Contains(union, v.String()) {
			union = append(union, v.String())
		}
	}
	return max(1, len(union)-s.Acks+1)
}

// Voters keeps k + q > |V ∪ S| on a primary while voters come and go, for the record's V and q, and
// for S and k of each SSN that some walsender may still have loaded.
type Voters struct {
	loaded  []Sync // each that a walsender may have loaded; the last one is what is set
	barrier LSN    // the primary's LSN, read when all walsenders had loaded the last; 0: not yet
}

// NewVoters is for a server whose SSN is s before it is promoted. What its walsenders loaded before
// is [SyncNobody].
func NewVoters(s Sync) *Voters { return &Voters{loaded: []Sync{s}} }

// Current returns the SSN that is set.
func (v *Voters) Current() Sync { return v.loaded[len(v.loaded)-1] }

// Loading notes that the SSN is about to become s. From now on a walsender may have loaded it.
func (v *Voters) Loading(s Sync) {
	v.loaded = append(v.loaded, s)
	v.barrier = 0
}

// Proven notes that all walsenders have loaded the current SSN, and the primary's LSN as read after
// that.
func (v *Voters) Proven(lsn LSN) {
	v.loaded = v.loaded[len(v.loaded)-1:]
	if v.barrier == 0 {
		v.barrier = lsn
	}
}

// Holds says whether k + q > |V ∪ S| for all that may be loaded. Where q is above the number of
// voters, only the primary can be promoted, which has everything.
func (v *Voters) Holds(r Record) bool {
	if r.Durability == Async || r.onlyPrimary() {
		return true
	}
	for _, s := range v.loaded {
		if r.Needed < s.needed(r.Voters) {
			return false
		}
	}
	return true
}

// Change is the next step to other voters: a record to write, or an SSN to set, or neither.
type Change struct {
	Record *Record
	Sync   *Sync
}

// Next returns the next step to these voters and this k, where flushed says how far each has
// flushed. The record comes first where it makes a promotion harder, and last where it makes one
// easier.
func (v *Voters) Next(r Record, want Wanted, flushed map[Identity]LSN) Change {
	if want.Durability == Async {
		if r.Durability != Async {
			n := r.next()
			n.Durability = Async
			return Change{Record: &n}
		}
		return v.changeTo(Sync{Kind: SyncAlone})
	}
	if want.Alone {
		if len(r.Voters) > 0 || r.Durability != want.Durability {
			n := r.next()
			// q stays: with no voters it says no more than that nobody else can be promoted, and it
			// must not have fallen when there are voters again.
			n.Voters, n.Acks, n.Durability = []Identity{}, 1, want.Durability
			return Change{Record: &n}
		}
		return v.changeTo(Sync{Kind: SyncAlone})
	}
	target := AnyOf(want.Members, want.Acks)
	n := r.next()
	for _, m := range want.Members {
		if !n.votes(m) {
			n.Voters = append(n.Voters, m)
		}
	}
	for _, s := range append(slices.Clone(v.loaded), target) {
		n.Needed = max(n.Needed, s.needed(n.Voters))
	}
	if r.Durability != Async && (len(n.Voters) > len(r.Voters) || n.Needed > r.Needed) {
		return Change{Record: &n}
	}
	if c := v.changeTo(target); c.Sync != nil || target.Kind == SyncNobody {
		return c
	}
	return v.settle(r, want, flushed)
}

func (v *Voters) changeTo(s Sync) Change {
	if v.Current().equal(s) {
		return Change{}
	}
	return Change{Sync: &s}
}

// settle is the only step that lowers q, and after which fewer voters can promote somebody: who
// goes alone drops all voters too, but keeps q above their number. All walsenders have loaded the
// SSN, so a commit after the barrier is on k of its members. One before it is too, once k of them
// have flushed the barrier: without that, it may be on a dropped member alone.
func (v *Voters) settle(r Record, want Wanted, flushed map[Identity]LSN) Change {
	if v.barrier == 0 || len(v.loaded) > 1 {
		return Change{}
	}
	reached := 0
	for _, m := range want.Members {
		if flushed[m] >= v.barrier {
			reached++
		}
	}
	target := v.Current()
	if reached < target.Acks {
		return Change{}
	}
	n := r.next()
	n.Voters, n.Acks = slices.Clone(want.Members), target.Acks
	n.Needed = len(n.Voters) - n.Acks + 1
	n.Durability = want.Durability
	if n.Durability == r.Durability && n.Needed == r.Needed && n.Acks == r.Acks && sameMembers(n.Voters, r.Voters) {
		return Change{}
	}
	return Change{Record: &n}
}

func sameMembers(a, b []Identity) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(i Identity) bool { return !slices.Contains(b, i) })
}

// Settings are what people chose for the cluster.
type Settings struct {
	Durability Durability
	Acks       int           // k
	DropAfter  time.Duration // how long a voter may be away before commits no longer wait for it
	AloneAfter time.Duration // how long a primary waits for a standby before it goes on alone; for Available
	Linger     time.Duration // see [Survey]
	StallAfter time.Duration // how long commits wait while voters are alive before the primary hands over
	MaxLag     LSN           // for Async, see [Survey]
	// How long data that are nobody's copy may replay one file of WAL, or none yet, before they are
	// taken to lack WAL, as those may that were put back from a backup: the server is rewound.
	ReplayAtMost time.Duration
}

// Wanted is what the voters should be.
type Wanted struct {
	Members    []Identity
	Acks       int
	Alone      bool
	Durability Durability
}

// Sender is a walsender of a primary: a standby that streams.
type Sender struct {
	Identity
	Flushed LSN
	Counts  bool // what it has flushed releases commits, by the SSN that its walsender has loaded
	NoSync  bool // must not be waited for
	// What people chose: the highest is promoted, and a NoFailover never.
	Priority   int
	NoFailover bool
}

// Roster remembers when each standby was last seen to stream.
type Roster struct {
	seen map[Identity]time.Duration
	need map[Identity]LSN  // how far a newcomer must flush before it votes
	able map[Identity]bool // whose WAL is known to be a part of the primary's
	last time.Duration     // somebody streamed
}

// NewRoster is for a server that is promoted at now. Its voters have until DropAfter to come. Those
// who are able to stream at once are named.
func NewRoster(r Record, able []Identity, now time.Duration) *Roster {
	w := &Roster{map[Identity]time.Duration{}, map[Identity]LSN{}, map[Identity]bool{}, now}
	for _, v := range r.Voters {
		w.seen[v] = now
	}
	for _, v := range able {
		w.able[v] = true
	}
	return w
}

// Want returns who should vote. Admitted is who streams and has flushed all that the primary had
// when it came: one that was cloned or rewound cannot be started without the WAL up to there. A
// voter stays until it has been away for DropAfter, and the last one for ever, unless the primary
// may go on alone. lsn is where the primary's WAL ends.
func (w *Roster) Want(r Record, s Settings, senders []Sender, lsn LSN, now time.Duration) Wanted {
	for _, x := range senders {
		if !r.votes(x.Identity) && w.need[x.Identity] == 0 {
			w.need[x.Identity] = lsn
		}
		if !x.NoSync && x.Flushed >= max(r.From, w.need[x.Identity]) {
			w.seen[x.Identity], w.last = now, now
			w.able[x.Identity] = true
		}
	}
	want := Wanted{Durability: s.Durability}
	for i, at := range w.seen {
		if now-at < s.DropAfter {
			want.Members = append(want.Members, i)
		}
	}
	if len(want.Members) == 0 {
		want.Alone = s.Durability == Available && now-w.last >= s.AloneAfter
		want.Members = slices.Clone(r.Voters)
	}
	slices.SortFunc(want.Members, func(a, b Identity) int { return strings.Compare(a.String(), b.String()) })
	want.Acks = max(1, min(s.Acks, len(want.Members)))
	return want
}
