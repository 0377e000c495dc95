package top

import (
	"fmt"
	"slices"

	"github.com/primacy-go/primacy"
)

// dialog asks for what an action needs, one thing after the other: whom, why, and the name, typed.
type dialog struct {
	verb    string
	state   primacy.State // as it was when the dialog was opened: the request is for that term
	choices []string      // successors, or members; none for resign
	choice  int
	step    step
	reason  string
	typed   string
	asked   string // what must be typed
	what    string // what that is: "the name", "the ID", "the token"
	warning string // what is not as it was when the dialog was opened
	wrong   string // what was typed wrong

	confirmed bool
	failure   string
}

type step int

const (
	stepChoose step = iota
	stepReason
	stepConfirm
)

// newDialog returns the dialog of a key for a row, or why there is nothing to ask for.
func newDialog(key string, r *row) (*dialog, string) {
	if r == nil {
		return nil, "nothing is selected"
	}
	d := &dialog{state: r.state, verb: map[string]string{"t": "transfer", "r": "resign", "d": "drain"}[key]}
	l := r.state.Leader
	switch {
	case d.verb == "drain":
		if d.choices = r.members(); len(d.choices) == 0 {
			return nil, "no candidate here has a known ID"
		}
	case l == nil:
		return nil, "nobody leads"
	case l.Slots != 0:
		return nil, "a shared lock does not move: its holders give it back"
	case l.ID == "":
		return nil, "the leader was entered by another program, which does not listen"
	case d.verb == "transfer":
		if d.choices = successors(r.state); len(d.choices) == 0 {
			return nil, "nobody whose ID is known waits"
		}
	default:
		d.step = stepReason
		d.settle()
	}
	return d, ""
}

// successors returns who waits and can be named, in the order of the line.
func successors(st primacy.State) (ids []string) {
	for _, w := range st.Waiting {
		if w.ID != "" && !w.Held && w.Slots == 0 && w.ID != st.Leader.ID && !slices.Contains(ids, w.ID) {
			ids = append(ids, w.ID)
		}
	}
	return ids
}

// settle says what must be typed: the name, or what stands for it where it cannot be typed as it is
// shown.
func (d *dialog) settle() {
	d.asked, d.what = d.state.Name, "the name"
	if d.verb == "drain" {
		d.asked, d.what = d.chosen(), "the ID"
	}
	if !plainText(d.asked) || len(d.asked) > 60 {
		d.asked, d.what = "yes", "the word"
		if d.state.Leader != nil {
			d.asked, d.what = d.state.Leader.Token.String(), "the token"
		}
	}
}

func (d *dialog) chosen() string {
	if len(d.choices) == 0 {
		return ""
	}
	return d.choices[d.choice]
}

// look compares the dialog with a new picture: the term it is about may be over.
func (d *dialog) look(v *view) {
	if d.verb == "drain" {
		return
	}
	i := slices.IndexFunc(v.rows, func(r *row) bool { return r.name == d.state.Name })
	switch {
	case i < 0 || v.rows[i].state.Leader == nil:
		d.failure = "nobody leads any more"
	case v.rows[i].state.Leader.Token != d.state.Leader.Token:
		d.failure = "the leader has changed meanwhile"
	case d.verb == "transfer" && !slices.Contains(successors(v.rows[i].state), d.chosen()):
		d.warning = "it is not waiting any more"
	default:
		d.warning = ""
	}
}

// press does what a key asks for; it returns true when the dialog is over.
func (d *dialog) press(key string) bool {
	if key == keyEsc || d.failure != "" {
		return true
	}
	switch d.step {
	case stepChoose:
		d.choose(key)
	case stepReason:
		if key != keyEnter {
			d.reason = edit(d.reason, key)
		} else {
			d.step = stepConfirm
		}
	case stepConfirm:
		switch {
		case key != keyEnter:
			d.typed = edit(d.typed, key)
		case d.typed == d.asked:
			d.confirmed = true
			return true
		default:
			d.typed, d.wrong = "", "that is not "+d.what
		}
	}
	return false
}

func (d *dialog) choose(key string) {
	switch key {
	case keyUp, "k":
		d.choice = max(d.choice-1, 0)
	case keyDown, "j":
		d.choice = min(d.choice+1, len(d.choices)-1)
	case keyHome, "g":
		d.choice = 0
	case keyEnd, "G":
		d.choice = len(d.choices) - 1
	case keyEnter:
		d.step = stepReason
		d.settle()
	}
}

// title says what is about to be done.
func (d *dialog) title() string {
	switch d.verb {
	case "transfer":
		return fmt.Sprintf("transfer %s from %s (token %d)", d.state.Name, whoLeads(d.state.Leader),
			d.state.Leader.Token)
	case "resign":
		return fmt.Sprintf("have %s resign %s (token %d)", whoLeads(d.state.Leader), d.state.Name, d.state.Leader.Token)
	}
	return "drain: move all that one member leads to others"
}

// doing says what is under way.
func (d *dialog) doing() string {
	switch d.verb {
	case "transfer":
		return fmt.Sprintf("asked %s to hand %s over to %s ...", whoLeads(d.state.Leader), d.state.Name, d.chosen())
	case "resign":
		return fmt.Sprintf("asked %s to resign %s ...", whoLeads(d.state.Leader), d.state.Name)
	}
	return fmt.Sprintf("asked %s to hand over all it leads ...", d.chosen())
}
