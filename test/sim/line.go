package sim

import "github.com/primacy-go/primacy/internal/shardsim"

// line is the state of a name in a store: the first entry holds it, the others wait in the order of
// their tokens.
type line struct {
	w       *World
	name    int
	entries []*entry
	changed func() // nil, or told of each change
}

// touched tells of a change.
func (ln *line) touched() {
	if ln.changed != nil {
		ln.changed()
	}
}

// entry is a claim as the store has it.
type entry struct {
	line   *line
	owner  *node
	inc    uint32
	sess   uint64
	claim  uint64 // the claim ID
	token  uint64
	lease  uint64
	gone   bool
	orphan int64 // true time since which nobody stands behind it; 0: somebody does
	signal *bell // of the client that waits
	server int   // that will push it

	value, said []byte          // what its owner announces, and as the leader
	read        []byte          // which of them rec is read from
	rec         shardsim.Record // of a member of a group
}

// cause says who removed a claim.
type cause uint8

const (
	released cause = iota // its owner, by name
	expired               // the store: the lease ran out
	ended                 // its owner ended the lease
	byHand                // an operator
	stale                 // a former leader of the store, from its stale clock
	displaced
	passed // over: the holder has named one behind it
)

var causeWords = [...]string{"released", "its lease ran out", "its lease was closed", "removed by hand",
	"revoked by a former leader of the store", "displaced",
	"passed over"}

// enter puts e at the end.
func (ln *line) enter(e *entry) {
	e.line = ln
	ln.w.judge.enters(ln, e)
	ln.entries = append(ln.entries, e)
	if len(ln.entries) == 1 {
		ln.w.judge.heads(e)
	}
	ln.touched()
}

// remove takes e out and wakes the next one, if e was the first.
func (ln *line) remove(e *entry, why cause) {
	if e.gone {
		return
	}
	for i, x := range ln.entries {
		if x != e {
			continue
		}
		copy(ln.entries[i:], ln.entries[i+1:])
		ln.entries = ln.entries[:len(ln.entries)-1]
		e.gone = true
		if ln.w.tr != nil {
			ln.w.say(nil, detail, "store: claim with token %d (%s) leaves the line of %s: %s", e.token, e.owner.name,
				nameOf(ln.name), causeWords[why])
		}
		ln.w.judge.leaves(e, why)
		if i == 0 && len(ln.entries) > 0 {
			ln.w.judge.heads(ln.entries[0])
			ln.w.judge.woke(ln.name, ln.wake())
		}
		ln.touched()
		return
	}
}

// wake signals the one that is first now, and nobody else: waking them all would cost a crowd of n
// waiters n² calls.
func (ln *line) wake() (n int) {
	for i, e := range ln.entries {
		if i > 0 && !ln.w.plan.Broken.Herd {
			break
		}
		if e.signal != nil && e.owner.inc == e.inc {
			n++
			ln.w.signal(e.owner, e.server, e.signal)
		}
	}
	ln.w.count.Wakes += uint64(n)
	return n
}

// of returns the entry of a session.
func (ln *line) of(sess uint64) *entry {
	for _, e := range ln.entries {
		if e.sess == sess {
			return e
		}
	}
	return nil
}
