package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/primacy-go/primacy"
)

// contest is what run and lock differ in: what is stood for, how it is won, and in which words that
// is said.
type contest struct {
	name  string
	outer []held // what the commands around this one hold under that name
	win   func(context.Context, *primacy.Session) (*primacy.Term, error)
	lock  bool
	slots int           // as in primacy.Entry: 0 is exclusive
	try   bool          // win or give up at once
	wait  time.Duration // give up after so long; 0: never
	spent time.Duration // of wait, before this process stood
	late  int           // the exit code then

	has, right, missed string
	role               string // the command's PRIMACY_ROLE
}

var (
	errWaited   = errors.New("not acquired in time")
	errNoAnswer = fmt.Errorf("%w in the time given", primacy.ErrUnreachable)
)

// limited returns a context that ends when the contest is given up; a try has the time limit of one
// answer.
func (c *contest) limited(ctx context.Context, answer time.Duration) (context.Context, context.CancelFunc) {
	switch {
	case c.try: // the answer takes one round trip
		return context.WithTimeoutCause(ctx, answer, errNoAnswer)
	case c.wait > 0:
		return context.WithTimeoutCause(ctx, c.wait-c.spent, errWaited)
	}
	return ctx, func() {}
}

// called names what is stood for.
func (c *contest) called() string {
	if c.lock {
		return "the lock " + c.name
	}
	return c.name
}

// won says what was won.
func (c *contest) won(id string, term *primacy.Term) string {
	s := fmt.Sprintf("%s %s %s%s", id, c.has, c.name, under("token", term.Token()))
	if !c.lock || term.Token() == 0 {
		return s
	}
	s += fmt.Sprintf(" (claim %d", term.ClaimToken())
	if how := share(c.slots); how != "" {
		s += ", " + how
	}
	return s + ")"
}

// mustWait says whether whoever enters this line now has to wait.
func (c *contest) mustWait(st primacy.State) bool {
	all := slices.Concat(holders(st), st.Waiting)
	exclusive := slices.ContainsFunc(all, func(s primacy.Entry) bool { return s.Slots == 0 })
	switch {
	case c.slots == 0 || exclusive:
		return len(all) > 0
	case c.slots > 0:
		return st.Leader != nil && 1+len(st.Waiting) >= c.slots
	}
	return false
}

// whoHolds says who leads or holds. Nobody may, though some wait: a Redis that has just started
// grants nothing for a while.
func (c *contest) whoHolds(st primacy.State) string {
	switch n := len(holders(st)); {
	case n == 0 && c.lock:
		return "nobody holds it yet"
	case n == 0:
		return "nobody leads yet"
	case n > 1:
		return fmt.Sprintf("%s hold it", whoAll(st))
	case c.lock || st.Leader.Slots != 0:
		return fmt.Sprintf("%s holds it%s", who(st.Leader), under("claim", st.Leader.Token))
	}
	return fmt.Sprintf("%s leads%s", who(st.Leader), under("token", st.Leader.Token))
}

// under says under which token something is held; nothing where the store has no tokens.
func under(what string, t primacy.Token) string {
	if t == 0 {
		return ""
	}
	return fmt.Sprintf(" under %s %d", what, t)
}

// refuseNested refuses what a command around this one holds. A semaphore has room for several of
// one caller, while there are slots left.
func (c *contest) refuseNested(st primacy.State) error {
	var around []primacy.Entry
	for _, h := range holders(st) {
		if slices.Contains(c.outer, held{c.name, h.ID, h.Token}) {
			around = append(around, h)
		}
	}
	exclusive := slices.ContainsFunc(around, func(h primacy.Entry) bool { return h.Slots <= 0 })
	if len(around) == 0 || c.slots > len(around) && !exclusive {
		return nil
	}
	return fail(exitUsage, "%s is held by the command around this one already (%s, claim %d): "+
		"it would wait for itself for ever; leave this one out",
		c.called(), who(&around[0]), around[0].Token)
}

// heldEnv tells a command what it and the commands around it hold.
const heldEnv = "PRIMACY_HELD"

// held is one claim that a command, or one around it, runs under. ID and claim together find it in
// the line: so another store's claim on the same name is not taken for it, nor one that is over.
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
func (c *contest) holding(id string, term *primacy.Term) string {
	all, _ := allHeldOutside() // it was read before
	b, err := json.Marshal(append(all, held{c.name, id, term.ClaimToken()}))
	if err != nil {
		return "" // strings and numbers: it does not fail
	}
	return string(b)
}

// look reads the line before standing in it: to refuse a wait that could only be for a command
// around this one, and to tell people whom they wait for.
func (r *runner) look(ctx context.Context) error {
	limit, nested := min(5*time.Second, r.timeout), len(r.outer) > 0
	switch {
	case nested:
		limit = r.timeout
	case r.quiet || r.try:
		return nil
	case r.wait > 0:
		limit = min(limit, r.wait)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	st, err := r.session.Election(r.name).State(ctx)
	if err == nil {
		err = r.refuseNested(st)
	}
	if err != nil {
		if nested {
			return err
		}
		return nil
	}
	if !r.try && r.mustWait(st) {
		r.say("%s waits for %s: %s, %s", r.session.ID(), r.called(), r.whoHolds(st), othersWait(st))
	}
	return nil
}

// othersWait says how many wait beside whoever leads, holds, or asks and is not in the line yet.
func othersWait(st primacy.State) string {
	switch n := waiting(st); n {
	case 0:
		return "nobody else waits"
	case 1:
		return "1 other waits"
	default:
		return fmt.Sprintf("%d others wait", n)
	}
}

// inTheWay says why a lock is not to be had now.
func (r *runner) inTheWay(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	st, err := r.session.Election(r.name).State(ctx)
	switch {
	case err != nil:
		return r.called() + " was not free"
	case r.mustWait(st):
		return fmt.Sprintf("%s is not free: %s, %s", r.called(), r.whoHolds(st), othersWait(st))
	}
	return r.called() + " was not free" + r.nobodyHolds(st)
}

// waitedFor says what there is to say of a line in which the wait was too short.
func (r *runner) waitedFor(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	st, err := r.session.Election(r.name).State(ctx)
	if err != nil {
		return ""
	}
	return r.nobodyHolds(st)
}

// nobodyHolds says, where nobody leads or holds, that the store may be why; else nothing.
func (c *contest) nobodyHolds(st primacy.State) string {
	if len(holders(st)) > 0 {
		return ""
	}
	does := "leads"
	if c.lock {
		does = "holds"
	}
	return ", and nobody " + does + " it: 'primacy doctor' says if the store lets nobody, as Redis does after a restart"
}
