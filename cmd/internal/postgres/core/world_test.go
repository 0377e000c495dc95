package core

import (
	"fmt"
	"hash/maphash"
	"math/bits"
	"slices"
)

// The world of the search: a few members, their WAL as a list of records, the walsenders of each,
// and what of it all has been acknowledged. It decides nothing of what [Record.Promotion],
// [Survey.Judge], [Voters] and [RejoinFor] decide. There is no clock: a server that is never ended
// goes on for ever, whatever the store says.

const (
	most    = 4  // members
	longest = 10 // records in a WAL
)

// ids is a set of identities: bit 4*member + incarnation.
type ids uint16

func idOf(member, incarnation uint8) ids { return 1 << (4*member + incarnation) }
func (s ids) size() int                  { return bits.OnesCount16(uint16(s)) }
func (s ids) permute(to [most]uint8) ids {
	var t ids
	for i := range uint8(most) {
		t |= (s >> (4 * i) & 15) << (4 * to[i])
	}
	return t
}

// ssn is a value of synchronous_standby_names.
type ssn struct {
	names      ids
	kind, acks uint8
}

// ledger is a [Record], in few bytes.
type ledger struct {
	voters                        ids
	seq                           uint16
	token, primary, incarnation   uint8
	timeline, from, granted       uint8
	acks, seals, stopped, durable uint8
	forks                         [6]uint8 // where each timeline of the lineage begins, plus 1; 0: it is none of it
	had                           uint8    // the commits that primary had when it was chosen
	_                             uint8
}

// sender is a walsender.
type sender struct {
	loaded      ssn
	on          uint8
	incarnation uint8 // of the standby
	heard       uint8 // flushed, as the primary knows
	sent        uint8 // flushed, as the standby has told
	double      uint8 // what a second walsender of the same standby heard last
	_           uint8
}

// node is a member and its server.
type node struct {
	view    ledger // the last record that it knows of its own term
	loaded  [4]ssn // of its Voters
	set     ssn
	senders [most]sender
	wal     [longest]uint8 // of each record the timeline, and below it 4 bits of the commit's number, or 0
	length  uint8
	loads   uint8 // how many of loaded
	barrier uint8
	inc     uint8
	sealed  uint8
	follows uint8 // a member plus 1
	primary uint8 // out of recovery
	stage   uint8 // of a promotion: the record written, SSN set
	term    uint8 // under which it was chosen
	waits   uint8 // its backends wait for standbys: what its checkpointer has loaded
	late    uint8 // its walreceiver outlives its answer: only where that rule is broken
	said    answer
	strayed uint8 // promoted by hand, and not rewound since
}

// answer is what the member's claim says.
type answer struct{ token, inc, timeline, lsn uint8 }

type world struct {
	record         ledger
	nodes          [most]node
	token          uint8
	commits, acked uint8
	changes, wipes uint8 // done so far
	breaks, byHand uint8
}

// bounds of a search, and the rule that is broken in it.
type bounds struct {
	members, acks  uint8
	voters         uint8 // at first; 0: all but the primary
	commits, terms uint8
	changes        uint8 // of SSN
	adds           bool  // voters may be added
	wipes, breaks  uint8
	byHand         uint8
	alone, stops   bool
	script         []string // steps before the first state
	broken         string
}

var (
	names = [most + 1]string{"a", "b", "c", "d", "somebody"}
	lives = [4]string{"0", "1", "2", "3"}
)

func identity(member, inc uint8) Identity { return Identity{names[member], lives[inc]} }

func unpackID(i Identity) (member, inc uint8) { return i.Name[0] - 'a', i.Incarnation[0] - '0' }

func (s ids) list() []Identity {
	l := []Identity{}
	for i := range uint8(16) {
		if s>>i&1 == 1 {
			l = append(l, identity(i/4, i%4))
		}
	}
	return l
}

func packIDs(l []Identity) (s ids) {
	for _, i := range l {
		s |= idOf(unpackID(i))
	}
	return s
}

func (s ssn) real() Sync {
	r := Sync{Kind: SyncKind(s.kind), Acks: int(s.acks)}
	for _, i := range s.names.list() {
		r.Names = append(r.Names, i.String())
	}
	return r
}

func packSync(s Sync) ssn {
	p := ssn{kind: uint8(s.Kind), acks: uint8(s.Acks)}
	for _, n := range s.Names {
		p.names |= idOf(n[0]-'a', n[2]-'0')
	}
	return p
}

var durabilities = [...]Durability{Quorum, Available}

func (r ledger) real() Record {
	n := Record{Seq: uint64(r.seq), Token: uint64(r.token), Primary: identity(r.primary, r.incarnation),
		Timeline: Timeline(r.timeline), From: LSN(r.from), Granted: Timeline(r.granted), Voters: r.voters.list(),
		Acks: int(r.acks), Needed: int(r.seals), Durability: durabilities[r.durable], Stopped: LSN(r.stopped)}
	for t, from := range r.forks {
		if from > 0 {
			n.Lineage = append(n.Lineage, Fork{Timeline(t), LSN(from - 1)})
		}
	}
	return n
}

func packRecord(r Record, had uint8) ledger {
	p := ledger{voters: packIDs(r.Voters), seq: uint16(r.Seq), token: uint8(r.Token), timeline: uint8(r.Timeline),
		from: uint8(r.From), granted: uint8(r.Granted), acks: uint8(r.Acks), seals: uint8(r.Needed),
		durable: uint8(slices.Index(durabilities[:], r.Durability)), stopped: uint8(r.Stopped), had: had}
	p.primary, p.incarnation = unpackID(r.Primary)
	for _, f := range r.Lineage {
		p.forks[f.Timeline] = uint8(f.From) + 1
	}
	p.seq = 0 // nothing here depends on it
	return p
}

func (n *node) timeline() uint8 {
	if n.length == 0 {
		return 0
	}
	return n.wal[n.length-1] >> 4
}

func (n *node) append(timeline, commit uint8) {
	n.wal[n.length] = timeline<<4 | commit
	n.length++
}

// has is the set of commits in the WAL.
func (n *node) has() (set uint8) {
	for _, x := range n.wal[:n.length] {
		if x&15 != 0 {
			set |= 1 << (x & 7)
		}
	}
	return set
}

// common is how far two WALs are the same.
func common(a, b *node) uint8 {
	i := uint8(0)
	for i < a.length && i < b.length && a.wal[i] == b.wal[i] {
		i++
	}
	return i
}

func (n *node) cut(length uint8) {
	for i := length; i < n.length; i++ {
		n.wal[i] = 0
	}
	n.length = length
}

// voters builds the Voters that the primary has.
func (n *node) voters() *Voters {
	v := &Voters{barrier: LSN(n.barrier)}
	for _, s := range n.loaded[:n.loads] {
		v.loaded = append(v.loaded, s.real())
	}
	return v
}

func (n *node) keep(v *Voters) bool {
	if len(v.loaded) > len(n.loaded) {
		return false
	}
	n.loaded, n.loads, n.barrier = [4]ssn{}, uint8(len(v.loaded)), uint8(v.barrier)
	for i, s := range v.loaded {
		n.loaded[i] = packSync(s)
	}
	return true
}

// down ends the server: it comes back as a standby that listens to nobody.
func (n *node) down() {
	n.view, n.loaded, n.loads, n.barrier = ledger{}, [4]ssn{}, 0, 0
	n.set, n.senders, n.primary, n.stage, n.term, n.waits = ssn{}, [most]sender{}, 0, 0, 0, 1
	n.follows, n.late = 0, 0
}

// first is the world in which member a is the primary and the others stream from it.
func (b bounds) first() world {
	var w world
	w.token = 1
	voters := b.voters
	if voters == 0 {
		voters = b.members - 1
	}
	k := min(b.acks, voters)
	w.record = ledger{token: 1, timeline: 1, granted: 1, acks: k, seals: voters - k + 1, from: 1}
	if b.alone {
		w.record.durable = 1
	}
	w.record.forks[1] = 1
	for i := range voters {
		w.record.voters |= idOf(i+1, 0)
	}
	p := &w.nodes[0]
	for i := range b.members {
		n := &w.nodes[i]
		n.waits, n.sealed, n.wal[0], n.length = 1, 1, 1<<4, 1
		if i > 0 {
			n.follows = 1
		}
	}
	p.primary, p.term, p.view = 1, 1, w.record
	p.set = packSync(AnyOf(w.record.voters.list(), int(k)))
	p.loaded[0], p.loads = p.set, 1
	for i := uint8(1); i < b.members; i++ {
		p.senders[i] = sender{loaded: p.set, on: 1, heard: 1, sent: 1}
	}
	return w
}

// permute renames the members.
func (w *world) permute(to [most]uint8) world {
	p := *w
	p.record = w.record.permute(to)
	for i := range w.nodes {
		n := w.nodes[i]
		n.view = n.view.permute(to)
		n.set.names = n.set.names.permute(to)
		for j := range n.loads {
			n.loaded[j].names = n.loaded[j].names.permute(to)
		}
		if n.follows > 0 {
			n.follows = to[n.follows-1] + 1
		}
		for j := range n.senders {
			s := w.nodes[i].senders[j]
			s.loaded.names = s.loaded.names.permute(to)
			n.senders[to[j]] = s
		}
		p.nodes[to[i]] = n
	}
	return p
}

func (r ledger) permute(to [most]uint8) ledger {
	if r.token > 0 {
		r.voters = r.voters.permute(to)
		r.primary = to[r.primary]
	}
	return r
}

var seed = maphash.MakeSeed()

// local is what two members that could be exchanged have in common.
type local struct {
	wal                                 [longest]uint8
	length, inc, sealed, primary, stage uint8
	term, waits, late, role, senders    uint8
	said                                answer
	told                                [3]uint8
}

func (w *world) local(i uint8) local {
	n := &w.nodes[i]
	l := local{wal: n.wal, length: n.length, inc: n.inc, sealed: n.sealed, primary: n.primary, stage: n.stage,
		term: n.term, waits: n.waits, late: n.late, said: n.said}
	if w.record.primary == i {
		l.role |= 2
	}
	if w.record.voters>>(4*i)&15 != 0 {
		l.role |= 4
	}
	if n.follows > 0 {
		l.role |= 8
		f := &w.nodes[n.follows-1]
		l.told[0] = f.term<<4 | f.senders[i].heard
	}
	for j := range w.nodes {
		s := &w.nodes[j].senders[i]
		l.senders += s.on
		l.told[1] += s.heard
		l.told[2] += s.sent
	}
	return l
}

// canonical returns the hash of the world but for the names of its members.
func (w *world) canonical(members uint8) (world, uint64) {
	var sums [most]uint64
	order := []uint8{0, 1, 2, 3}[:members]
	for i := range members {
		sums[i] = maphash.Comparable(seed, w.local(i))
	}
	slices.SortFunc(order, func(a, b uint8) int {
		if sums[a] < sums[b] {
			return -1
		} else if sums[a] > sums[b] {
			return 1
		}
		return 0
	})
	best, sum := world{}, ^uint64(0)
	each(order, sums[:], 0, func(o []uint8) {
		to := [most]uint8{0, 1, 2, 3}
		for at, i := range o {
			to[i] = uint8(at)
		}
		p := w.permute(to)
		if h := maphash.Comparable(seed, p); h < sum || sum == ^uint64(0) {
			best, sum = p, h
		}
	})
	return best, sum
}

// each calls f with every order that exchanges only those whose sums are equal.
func each(order []uint8, sums []uint64, at int, f func([]uint8)) {
	if at == len(order) {
		f(order)
		return
	}
	for i := at; i < len(order) && sums[order[i]] == sums[order[at]]; i++ {
		order[at], order[i] = order[i], order[at]
		each(order, sums, at+1, f)
		order[at], order[i] = order[i], order[at]
	}
}

func (w *world) String() string {
	text := fmt.Sprintf("token %d, record %v of %d: primary %s, q %d, stopped %d; acknowledged %b", w.token,
		w.record.real().Voters, w.record.token, names[w.record.primary], w.record.seals, w.record.stopped,
		w.acked)
	for i, n := range w.nodes {
		if n.length+n.inc+n.sealed == 0 {
			continue
		}
		text += fmt.Sprintf("\n    %s@%d wal %x sealed %d", names[i], n.inc, n.wal[:n.length], n.sealed)
		if n.primary == 1 {
			text += fmt.Sprintf(" primary under %d, SSN %v", n.term, n.set.real())
		}
		if n.follows > 0 {
			text += " follows " + names[n.follows-1]
		}
	}
	return text
}
