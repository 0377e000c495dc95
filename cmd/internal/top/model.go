package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
)

// health is how an election is, the worst first.
type health int

const (
	leaderless health = iota // nobody leads, and somebody waits
	deserted                 // nobody stands for an election that somebody led in the last day
	flapping                 // the leader changed too often
	expiring                 // the lease is nearly over: its renewals fail
	fine
	free // nobody stands, and nothing is wrong: a lock, or work that came to its end
)

// What counts as trouble.
const (
	window   = 15 * time.Minute // in which changes of the leader are counted
	tooOften = 3                // changes in it
	nearEnd  = 3                // a third of the lease is left: it is renewed each fifth of it
)

func (h health) word(shared bool) string {
	switch {
	case h == leaderless:
		return "nobody leads"
	case h == deserted:
		return "deserted"
	case h == flapping:
		return "flapping"
	case h == expiring:
		return "lease ending"
	case h == free:
		return "free"
	case shared:
		return "held"
	}
	return "ok"
}

func (h health) style() style {
	switch h {
	case leaderless, deserted:
		return red | bold
	case flapping, expiring:
		return yellow | bold
	case free:
		return dim
	}
	return green
}

// dot goes with the word: for those who see no colours it has a shape.
func (h health) dot(ascii bool) string {
	shapes := [...]string{"○", "○", "▲", "▼", "●", "○"}
	if ascii {
		shapes = [...]string{"o", "o", "^", "v", "*", "o"}
	}
	return shapes[h]
}

// Term is one term of an election, as it was recorded.
type Term struct {
	Token    primacy.Token
	From, To time.Time // To is zero while it leads, and where nobody recorded the end
	ToAfter  time.Time // then it led at this instant; zero: not known
	ToBefore time.Time // then it led no more at this instant; zero: not known
	ID       string
	Reason   primacy.Reason
	By       string // who asked for its end
	Text     string // why, in his words
	Why      string // it ended, in words; empty while it leads
}

// finished says whether its leader gave it up by itself, as work does that came to its end.
func (t Term) finished() bool { return t.Reason == primacy.Resigned && t.By == "" }

// row is one election or lock as it is shown.
type row struct {
	name    string
	state   primacy.State
	health  health
	elected bool      // terms of it were recorded: an election, no lock
	done    bool      // nobody leads, and the last who did gave it up by himself
	since   time.Time // when its leader won; zero: not known
	before  time.Time // where since is not known: it led at that instant already
	changes int       // of the leader within the window
	whole   bool      // changes counts all of them; else: at least as many
	last    Term      // the last one that ended; its Why is empty where none is known
	lease   driver.Remaining
	leased  bool // lease is known
	terms   []Term
	read    bool // terms are of the present leader
}

func (r *row) leader() string { return whoLeads(r.state.Leader) }

// leaders names the leader, or the first holder and how many hold it beside.
func (r *row) leaders() string {
	if n := r.holders(); n > 1 {
		return fmt.Sprintf("%s +%d", r.leader(), n-1)
	}
	return r.leader()
}

func (r *row) shared() bool { return r.state.Leader != nil && r.state.Leader.Slots != 0 }

// holders returns how many hold it, waiting how many wait for it.
func (r *row) holders() (n int) {
	if r.state.Leader != nil {
		n = 1
	}
	return n + len(r.state.Waiting) - r.waiting()
}

func (r *row) waiting() (n int) {
	for _, w := range r.state.Waiting {
		if !w.Held {
			n++
		}
	}
	return n
}

// whoLeads names a candidate: its ID, or what else is known of a claim that another program
// entered.
func whoLeads(s *primacy.Entry) string {
	switch {
	case s == nil:
		return "-"
	case s.ID != "":
		return s.ID
	case len(s.Value) > 0:
		return string(s.Value[:min(len(s.Value), 64)]) + " (other program)"
	}
	return "other program, lease " + s.Lease
}

// judge says how a row is.
func (r *row) judge() {
	switch {
	case r.state.Leader == nil && r.waiting() > 0:
		r.health = leaderless
	case r.state.Leader == nil && r.elected && !r.done:
		r.health = deserted
	case r.state.Leader == nil:
		r.health = free
	case r.elected && r.changes >= tooOften:
		r.health = flapping
	case r.leased && r.lease.TTL > 0 && r.lease.Left < r.lease.TTL/nearEnd:
		r.health = expiring
	default:
		r.health = fine
	}
}

// arrange sorts rows: trouble first, then by name.
func arrange(rows []*row) {
	slices.SortFunc(rows, func(a, b *row) int {
		return cmp.Or(cmp.Compare(a.health, b.health), cmp.Compare(a.name, b.name))
	})
}

// matches says whether a row has the text in its name or in the ID of somebody in its line.
func (r *row) matches(text string) bool {
	has := func(s string) bool { return strings.Contains(strings.ToLower(s), text) }
	if text = strings.ToLower(text); has(r.name) || r.state.Leader != nil && has(r.leader()) {
		return true
	}
	return slices.ContainsFunc(r.state.Waiting, func(s primacy.Entry) bool { return has(s.ID) })
}

// members returns the IDs in a row's line, who leads first, each once.
func (r *row) members() (ids []string) {
	all := r.state.Waiting
	if r.state.Leader != nil {
		all = append([]primacy.Entry{*r.state.Leader}, all...)
	}
	for _, s := range all {
		if s.ID != "" && !slices.Contains(ids, s.ID) {
			ids = append(ids, s.ID)
		}
	}
	return ids
}
