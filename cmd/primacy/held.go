package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/primacy-go/primacy"
)

// heldEnv tells a command what it and the commands around it hold.
const heldEnv = "PRIMACY_HELD"

// held is one claim that a command, or one around it, runs under. ID and claim together find it in the line: so another store's claim
// on the same name is not taken for it, nor one that is over.
type held struct {
	Name  string        `json:"name"`
	ID    string        `json:"id"`
	Claim primacy.Token `json:"claim"`
}

func allHeldOutside() (all []held, err error) {
	v := os.Getenv(heldEnv)
	if v == "" {
		return nil, nil
	}
	if err := json.Unmarshal([]byte(v), &all); err != nil {
		return nil, fmt.Errorf("%s=%q is not what 'primacy run' and 'primacy lock' set: %w", heldEnv, clean(v), err)
	}
	return all, nil
}

// heldOutside returns what the commands around this one hold under that name.
func heldOutside(name string) ([]held, error) {
	all, err := allHeldOutside()
	return slices.DeleteFunc(all, func(h held) bool { return h.Name != name }), err
}

// holding is the command's PRIMACY_HELD: what those around it hold, and this.
func (r *runner) holding(term *primacy.Term) string {
	all, _ := allHeldOutside() // it was read before
	b, err := json.Marshal(append(all, held{r.name, r.session.ID(), term.ClaimToken()}))
	if err != nil {
		return "" // strings and numbers: it does not fail
	}
	return string(b)
}

// look reads the line before standing in it: to refuse a wait that could only be for a command around this one, and to tell people
// whom they wait for.
func (r *runner) look(ctx context.Context) error {
	limit, nested := time.Second, len(r.outer) > 0
	if nested {
		limit = r.timeout
	} else if r.quiet || r.try {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	st, err := r.session.Election(r.name).State(ctx)
	if err == nil {
		err = r.refuseNested(st)
	}
	switch {
	case err != nil && nested:
		return err
	case err == nil && !r.try && r.waits(st):
		r.say("%s waits for %s: %s, %d waiting", r.session.ID(), r.called(), r.whoHolds(st), waiting(st))
	}
	return nil
}

// refuseNested refuses what a command around this one holds. A semaphore has room for several of one caller, while there are slots left.
func (r *runner) refuseNested(st primacy.State) error {
	var around []primacy.Entry
	for _, h := range holders(st) {
		if slices.Contains(r.outer, held{r.name, h.ID, h.Token}) {
			around = append(around, h)
		}
	}
	exclusive := slices.ContainsFunc(around, func(h primacy.Entry) bool { return h.Slots <= 0 })
	if len(around) == 0 || r.slots > len(around) && !exclusive {
		return nil
	}
	return fail(exitUsage, "%s is held by the command around this one already (%s, claim %d): it would wait for itself for ever; leave this one out",
		r.called(), who(&around[0]), around[0].Token)
}

// waits says whether whoever stands in this line now has to wait.
func (r *runner) waits(st primacy.State) bool {
	all := slices.Concat(holders(st), st.Waiting)
	exclusive := slices.ContainsFunc(all, func(s primacy.Entry) bool { return s.Slots == 0 })
	switch {
	case r.slots == 0 || exclusive:
		return len(all) > 0
	case r.slots > 0:
		return st.Leader != nil && 1+len(st.Waiting) >= r.slots
	}
	return false
}

// called names what is stood for.
func (r *runner) called() string {
	if r.lock {
		return "the lock " + r.name
	}
	return r.name
}

// whoHolds says who leads or holds; somebody does.
func (r *runner) whoHolds(st primacy.State) string {
	switch n := len(holders(st)); {
	case n > 1:
		return fmt.Sprintf("%s hold it", whoAll(st))
	case r.lock || st.Leader.Slots != 0:
		return fmt.Sprintf("%s holds it under claim %d", who(st.Leader), st.Leader.Token)
	}
	return fmt.Sprintf("%s leads under token %d", who(st.Leader), st.Leader.Token)
}

// inTheWay says why a lock is not to be had now.
func (r *runner) inTheWay(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if st, err := r.session.Election(r.name).State(ctx); err == nil && r.waits(st) {
		return fmt.Sprintf("%s is not free: %s, %d waiting", r.called(), r.whoHolds(st), waiting(st))
	}
	return r.called() + " was not free"
}

// won says what was won.
func (r *runner) won(term *primacy.Term) string {
	s := fmt.Sprintf("%s %s %s under token %d", r.session.ID(), r.has, r.name, term.Token())
	if !r.lock {
		return s
	}
	s += fmt.Sprintf(" (claim %d", term.ClaimToken())
	if how := share(r.slots); how != "" {
		s += ", " + how
	}
	return s + ")"
}
