// Package pause keeps, in the store, what operators have paused. While a pause stands, nothing that
// could wait changes a leader: no priority, no failed health check, no schedule of cron, no move of
// a shard for balance. What safety demands goes on: deadlines, renewals, releases and fences are
// never paused, and an operator may still resign or transfer an election.
//
// With NoElections nobody new is elected either. If the leader dies, nobody leads until the pause
// ends.
//
// A pause is a record in the store ([driver.Journal]), so it binds all processes and outlives them.
// It ends by itself at Until, by the wall clock of whoever asks. A process that cannot read the
// pauses makes no change that could wait.
package pause

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/primacy-go/primacy/driver"
)

// Limits of a pause.
const (
	Default     = time.Hour // how long a pause stands unless told otherwise
	MaxReason   = 200       // bytes of a reason
	MaxStanding = 24        // pauses that stand at a time in one store
	maxText     = 255       // bytes of a scope, and of who paused it, as of a name or an ID
)

// Errors. Test with errors.Is.
var (
	// ErrInvalid says that a pause cannot be set as asked. Nothing was changed.
	ErrInvalid = errors.New("invalid")
	// ErrNotPaused says that there is no pause of exactly that scope.
	ErrNotPaused = errors.New("not paused")
	// ErrNotAdmitted says that whom an operator has named would not be elected.
	ErrNotAdmitted = errors.New("nobody would be elected")
	// ErrNoJournal says that the store keeps no records, and so no pauses: nothing can be paused.
	ErrNoJournal = errors.New("this store keeps no records, so nothing can be paused in it")
)

// Pause is what somebody has paused.
type Pause struct {
	// Scope is what is paused: one name, or with a slash at its end every name that begins with
	// it, or "" for everything.
	Scope  string
	By     string // who paused it
	Reason string // why, in words
	Since  time.Time
	Until  time.Time // when it ends by itself; zero: not before it is resumed
	// NoElections says that nobody new is elected while the pause stands.
	NoElections bool

	seq uint64 // of the record that it was read from
}

// Covers says whether the pause stands for the election with that name.
func (p Pause) Covers(name string) bool { return covers(p.Scope, name) }

// ForScope returns what a pause of a scope is called in a sentence.
func (p Pause) ForScope() string {
	switch {
	case p.Scope == "":
		return "everything"
	case strings.HasSuffix(p.Scope, "/"):
		return "everything below " + p.Scope
	}
	return p.Scope
}

// StandsAt says whether the pause has not ended by itself at that time.
func (p Pause) StandsAt(t time.Time) bool { return p.Until.IsZero() || t.Before(p.Until) }

// String returns the pause as one line: what, by whom, until when, and why.
func (p Pause) String() string {
	what, until := "", "until it is resumed"
	if p.NoElections {
		what = ", nobody new is elected"
	}
	if !p.Until.IsZero() {
		until = "until " + p.Until.UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf("%s is paused by %s %s%s: %s", p.ForScope(), p.By, until, what, p.Reason)
}

func covers(scope, name string) bool {
	return scope == "" || scope == name || strings.HasSuffix(scope, "/") && strings.HasPrefix(name, scope)
}

// Set pauses p.Scope from now on, until p.Until, in place of an earlier pause of exactly that
// scope. It fills in Since and returns what stands. Once it has returned nil, whoever reads the
// pauses of that store afterwards sees it. It repeats the write until the store confirms it or ctx
// ends, which leaves open whether the pause stands. ErrInvalid says what is wrong, ErrNoJournal
// that the store keeps no records.
func Set(ctx context.Context, st driver.Store, p Pause) (Pause, error) {
	p.Since = time.Now().UTC().Truncate(time.Millisecond)
	p.Until = p.Until.UTC()
	if p.Until.Year() <= 1 {
		p.Until = time.Time{}
	}
	for what, s := range map[string]string{"scope": p.Scope, "name of who pauses": p.By, "reason": p.Reason} {
		if err := checkText(what, s); err != nil {
			return Pause{}, err
		}
	}
	switch {
	case p.By == "" || p.Reason == "":
		return Pause{}, fmt.Errorf("pause: %w: say who pauses and why", ErrInvalid)
	case len(p.Reason) > MaxReason:
		return Pause{}, fmt.Errorf("pause: %w: the reason has %d bytes, more than %d", ErrInvalid, len(p.Reason),
			MaxReason)
	case p.Until.Year() > 9999: // JSON has no such time
		return Pause{}, fmt.Errorf("pause: %w: the end is in the year %d, after 9999", ErrInvalid, p.Until.Year())
	case !p.StandsAt(p.Since):
		return Pause{}, fmt.Errorf("pause: %w: %v is over already", ErrInvalid, p.Until)
	}
	e := entry{Do: doPause, Scope: p.Scope, By: p.By, Reason: p.Reason, At: p.Since, Until: p.Until,
		NoElections: p.NoElections}
	err := write(ctx, st, e, func(b *book) error {
		if _, again := b.pauses[p.Scope]; !again && len(b.pauses) >= MaxStanding {
			return fmt.Errorf("pause: %w: %d pauses stand already, resume some, or pause a prefix", ErrInvalid,
				MaxStanding)
		}
		return nil
	})
	return p, err
}

// Resume ends the pause of exactly that scope, and returns it. ErrNotPaused if there is none. As
// [Set] it repeats the write until the store confirms it or ctx ends.
func Resume(ctx context.Context, st driver.Store, scope, by string) (Pause, error) {
	var was Pause
	e := entry{Do: doResume, Scope: scope, By: by, At: time.Now().UTC()}
	err := write(ctx, st, e, func(b *book) error {
		p, ok := b.pauses[scope]
		if !ok {
			return fmt.Errorf("resume %s: %w", Pause{Scope: scope}.ForScope(), ErrNotPaused)
		}
		was = p
		return nil
	})
	return was, err
}

// List returns the pauses that stand, ordered by scope. It asks the store once. A store that keeps
// no records has none.
func List(ctx context.Context, st driver.Store) ([]Pause, error) {
	r, err := Read(ctx, st)
	return r.List(), err
}

// Of returns a pause that covers at least one of the names, nil if none does. A shard is asked for
// with two names, its own and its group's. Of several pauses it returns the strongest: one with
// NoElections before one without, then the one that ends last. It asks the store once. After an
// error nobody knows whether there is one, and the caller makes no change that could wait.
func Of(ctx context.Context, st driver.Store, names ...string) (*Pause, error) {
	r, err := Read(ctx, st)
	return r.Of(names...), err
}

// Strongest is [Of] among pauses that were read before.
func Strongest(all []Pause, names ...string) *Pause {
	var best *Pause
	for _, p := range all {
		if slices.ContainsFunc(names, p.Covers) && (best == nil || best.weakerThan(p)) {
			best = &p
		}
	}
	return best
}

// weakerThan says whether q counts in place of p where both cover a name: see [Of].
func (p *Pause) weakerThan(q Pause) bool {
	switch {
	case p.NoElections != q.NoElections:
		return q.NoElections
	case p.Until.IsZero() || q.Until.IsZero():
		return !p.Until.IsZero()
	}
	return q.Until.After(p.Until)
}

// admitted is how long an admission stands. Its end is written by the wall clock of who admits, and
// read by that of the candidate: so it is longer than the longest lease, than work usually takes to
// stop, and than clocks usually differ.
const admitted = 15 * time.Minute

// Admission lets one candidate be elected to Name once, under Token: see [Admit].
type Admission struct {
	Name  string    `json:"scope"`
	ID    string    `json:"for"`
	Token uint64    `json:"token,string"`
	By    string    `json:"by,omitempty"` // who has named it
	Until time.Time `json:"until"`

	seq uint64 // of the record that it was read from
}

// Admit lets one candidate be elected to name once, although nobody new is elected there, or will
// not be: an operator asks the leader to hand over to it. id is its session's, and token that of
// its claim, which waits in the line. The admission ends with that claim, or after fifteen minutes.
// A pause that is set meanwhile, or anew, does not end it: the leader may be stopping its work for
// it already.
//
// It is written where nothing is paused, too, for a pause that comes while the leader's work stops.
// Nobody else could write it then. Who asks may be gone. And the leader must not wait for a record
// before it gives the name up.
//
// As [Set] it repeats the write until the store confirms it or ctx ends. ErrNotAdmitted says that
// the store refused the write, and that nobody would be elected. Where nobody is kept from being
// elected, a write that is refused is no error. A driver.ErrRefused without ErrNotAdmitted says
// that the pauses may not be read. ErrInvalid says that a text is too long, or is none.
func Admit(ctx context.Context, st driver.Store, name, id string, token uint64, by string, over ...string) error {
	_, err := admit(ctx, st, Admission{Name: name, ID: id, Token: token, By: by}, over,
		func(*book) *Pause { return nil })
	return err
}

// AdmitUnlessPaused is [Admit] for a change of leader that could wait, such as one for a failed
// check. If name is paused in any way it writes nothing, and returns the pause. Otherwise the
// admission stands before the leader begins to stop its work: a pause that is set after that does
// not keep the successor out.
func AdmitUnlessPaused(ctx context.Context, st driver.Store, name, id string, token uint64, by string) (*Pause, error) {
	return admit(ctx, st, Admission{Name: name, ID: id, Token: token, By: by}, nil,
		func(b *book) *Pause { return b.over(name) })
}

// AdmitNext is [Admit] for a leader that is asked to resign, and for whoever is next in the line.
// If a pause forbids elections of name, or of one of those that are over it, it writes nothing, and
// returns the pause: an operator who names nobody lets nobody be elected.
func AdmitNext(ctx context.Context, st driver.Store, name, id string, token uint64, by string, over ...string,
) (*Pause, error) {
	return admit(ctx, st, Admission{Name: name, ID: id, Token: token, By: by}, over,
		func(b *book) *Pause { return b.forbids(append([]string{name}, over...)...) })
}

// admit writes an admission unless there is a pause that forbids it, which it returns.
func admit(ctx context.Context, st driver.Store, a Admission, over []string, forbids func(*book) *Pause,
) (*Pause, error) {
	if _, ok := st.(driver.Journal); !ok {
		return nil, nil
	}
	for what, s := range map[string]string{"name": a.Name, "ID": a.ID, "name of who admits": a.By} {
		if err := checkText(what, s); err != nil {
			return nil, err
		}
	}
	now := time.Now().UTC()
	e := entry{Do: doAdmit, Scope: a.Name, For: a.ID, Token: a.Token, By: a.By, At: now, Until: now.Add(admitted)}
	var seen *book
	var p *Pause
	err := write(ctx, st, e, func(b *book) error {
		seen = b
		if p = forbids(b); p != nil {
			return errForbidden
		}
		return nil
	})
	switch {
	case errors.Is(err, errForbidden):
		return p, nil
	case !errors.Is(err, driver.ErrRefused) || seen == nil:
		return nil, err
	}
	if p := seen.forbids(append([]string{a.Name}, over...)...); p != nil {
		return nil, fmt.Errorf("%w: %s: the record that admits %s was not written: %w", ErrNotAdmitted, p, a.ID, err)
	}
	return nil, nil
}

// Elect asks whether the session with that ID, which has won name under that token, may be elected:
// it returns nil, or the pause that forbids it, be it of name or of one of those that are over it,
// as a group is over its shard. It asks the store once. After an error nobody knows: the caller
// asks again for the same term, or is not elected.
func Elect(ctx context.Context, st driver.Store, name, id string, token uint64, over ...string) (*Pause, error) {
	r, err := Read(ctx, st)
	return r.Forbids(name, id, token, over...), err
}

func checkText(what, s string) error {
	switch {
	case len(s) > maxText:
		return fmt.Errorf("pause: %w: the %s has %d bytes, more than %d", ErrInvalid, what, len(s), maxText)
	case !utf8.ValidString(s):
		return fmt.Errorf("pause: %w: the %s %q is not valid UTF-8", ErrInvalid, what, s)
	case strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r >= 0x7f && r <= 0x9f }):
		return fmt.Errorf("pause: %w: the %s %q has a control character", ErrInvalid, what, s)
	}
	return nil
}
