// Package fence holds what all fences share: the stamp that travels with a write, the rule that
// admits or refuses it, and the errors. A fence for a resource is a package of its own, so that
// nobody links a client he does not use:
//
//	etcdfence    the user's own Txn, under a compare on the claim's key
//	sqlfence     a row checked and locked in the user's own transaction: PostgreSQL, SQLite
//	redisfence   a check in the user's own script
//	httpfence    a transport that sends the token, a middleware that refuses a smaller one
//	filefence    a file replaced in one step
//
// No check inside a process protects a write that is under way when the process is paused: it lands
// whenever the process, or the packet, goes on. A fence is the resource's own refusal of a token
// smaller than the largest it has seen. It needs no clock; it assumes only that tokens grow.
//
// Two conditions. The check and the effect are one atomic step: otherwise the newer leader's write
// comes between them. And a new leader raises the fence before it reads what it will build on:
// otherwise an older leader's write may land between that read and the new leader's first write,
// and is then overwritten unseen.
//
// A fence orders writes to one resource. It does not undo what an older leader wrote before it was
// raised, and it does not order two resources against each other. Of a virtual machine that was
// started twice from one snapshot both copies have the same token: no fence can tell them apart.
//
// What each fence guarantees and cannot do: docs/fencing.md.
package fence

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/primacy-go/primacy"
)

// Term is what fences need of a term. *primacy.Term is one.
type Term interface {
	Name() string
	Token() primacy.Token
	Check() error
}

// Stamp travels with a write: which election's leader writes, and under which token. The zero value
// is nobody's.
type Stamp struct {
	Name   string        `json:"name"` // the election's; a fence is raised under it
	Token  primacy.Token `json:"token"`
	Origin string        `json:"origin,omitempty"` // of the token, see Stamp.From; empty: not told
	shared bool          // others hold the name beside this term, under other tokens
}

// Of returns the stamp of a term. It does not ask whether the term is still on: that is what the
// fence is for. Holders of a shared lock write side by side, and a fence would shut out all but the
// newest: it refuses the stamp of a reader, or of a semaphore with several slots, with a
// primacy.ErrInvalid.
func Of(t Term) Stamp {
	held, ok := t.(interface{ Shared() bool })
	return Stamp{Name: t.Name(), Token: t.Token(), shared: ok && held.Shared()}
}

// From returns s with the origin of its token, if store can tell it (*etcdstore.Store can: the
// cluster's ID).
//
// Tokens grow within one history of a store. A store that was restored from a backup, or replaced,
// counts from an earlier number again, and then "larger" no longer means "newer". A fence that was
// given an origin refuses every other one, and none, with [ErrOrigin], until an operator has said
// that it is right (Adopt). So either all leaders of an election give one, or none does.
//
// An origin shows a restore only if the store's identity changed with it. etcd computes its cluster
// ID from --initial-cluster-token and the members' peer URLs: restored, or started on an empty
// disk, with the same flags it keeps its ID. So restore etcd with a new --initial-cluster-token,
// or with --bump-revision and --mark-compacted, which let tokens grow on.
func (s Stamp) From(store any) Stamp {
	if o, ok := store.(interface{ Origin() string }); ok {
		s.Origin = o.Origin()
	}
	return s
}

// FromEnv returns the stamp of the term under which `primacy run` started this command:
// PRIMACY_NAME and PRIMACY_TOKEN. It returns a primacy.ErrInvalid if they are not set, or make no
// stamp.
func FromEnv() (Stamp, error) {
	s := Stamp{Name: os.Getenv("PRIMACY_NAME")}
	text := os.Getenv("PRIMACY_TOKEN")
	if s.Name == "" || text == "" {
		return Stamp{}, invalid("PRIMACY_NAME and PRIMACY_TOKEN are not both set: start the command with primacy run")
	}
	if err := s.Token.UnmarshalText([]byte(text)); err != nil {
		return Stamp{}, err
	}
	return s, s.Valid()
}

// Valid returns a primacy.ErrInvalid that says why s cannot be sent, or nil.
func (s Stamp) Valid() error {
	if err := primacy.CheckName(s.Name); err != nil {
		return err
	}
	if s.shared {
		return invalid("%q is a reader's, or a semaphore's: a fence lets one holder after the other write, "+
			"and refuses those beside the newest", s.Name)
	}
	if s.Token == 0 {
		return invalid("the token of %q is 0: use that of a term that was won, on a store that has tokens (a quorum of Redis servers has none)", s.Name)
	}
	if len(s.Origin) > primacy.MaxName || strings.ContainsFunc(s.Origin, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return invalid("the origin %q of the token of %q: use up to %d letters, digits and signs", s.Origin, s.Name, primacy.MaxName)
	}
	return nil
}

// After is the rule of every fence. It returns nil if a write with s may follow one with last, the
// zero Stamp where nothing was seen yet; otherwise a *StaleError, an *OriginError, or a
// primacy.ErrInvalid if last is another election's. A resource with a fence of its own calls it
// while it holds whatever makes check and effect one step, and then stores s.
func (s Stamp) After(last Stamp) error {
	switch {
	case last.Token == 0:
		return nil
	case last.Name != s.Name:
		return invalid("the resource is fenced by the election %q: the leader of %q has no say there", last.Name, s.Name)
	case last.Origin != "" && last.Origin != s.Origin:
		return &OriginError{Name: s.Name, Token: s.Token, Origin: s.Origin, Largest: last.Token, Known: last.Origin}
	case s.Token < last.Token:
		return &StaleError{Name: s.Name, Token: s.Token, Largest: last.Token}
	}
	return nil
}

// The one fact each error tells. Test with errors.Is.
var (
	// ErrStale says that a newer leader has been here. This attempt wrote nothing; an earlier one
	// may have, where the client library repeats a request by itself whose answer was lost
	// (go-redis unless MaxRetries is -1, net/http for idempotent methods and an Idempotency-Key).
	// Whoever gets it has lost the election, whatever his clock says: stop acting as leader.
	// Repeating cannot help.
	ErrStale = errors.New("a newer leader has been here")
	// ErrOrigin says that the token comes from another store than those seen so far, so that their
	// order means nothing. This attempt wrote nothing, but for a Txn of package etcdfence: etcd
	// names its cluster only in the answer. An operator has to find out whether the store was
	// restored or replaced, or an address is wrong.
	ErrOrigin = errors.New("the token comes from another store")
	// ErrNotRaised says that the fence does not know the token: the leader has not raised it, or
	// the resource has lost what it knew. This attempt wrote nothing. Ask the term's Check first.
	// Only if it says yes raise the fence, read again what the write was built on, and write: a
	// leader of the past that raises a fence that has forgotten its successor is let in again.
	ErrNotRaised = errors.New("the fence was not raised under this token")
)

// StaleError is an [ErrStale] with both tokens.
type StaleError struct {
	Name    string        `json:"name"`
	Token   primacy.Token `json:"token"`   // of the write that was refused
	Largest primacy.Token `json:"largest"` // that the resource has seen; 0: it knows that ours is over, and no newer one
}

// Error returns one line with both tokens.
func (e *StaleError) Error() string {
	if e.Largest == 0 {
		return fmt.Sprintf("fence %q: token %d is stale: its claim is gone", e.Name, e.Token)
	}
	return fmt.Sprintf("fence %q: token %d is stale: %v, under token %d", e.Name, e.Token, ErrStale, e.Largest)
}

// Unwrap returns [ErrStale].
func (e *StaleError) Unwrap() error { return ErrStale }

// OriginError is an [ErrOrigin] with both origins and both tokens.
type OriginError struct {
	Name    string        `json:"name"`
	Token   primacy.Token `json:"token"` // of the write that was refused
	Origin  string        `json:"origin"`
	Largest primacy.Token `json:"largest"` // that the resource has seen; 0: the resource is itself another store
	Known   string        `json:"known"`   // the origin of those it has seen, or the other store
}

// Error returns one line that says what to do.
func (e *OriginError) Error() string {
	if e.Largest == 0 {
		return fmt.Sprintf("fence %q: %v: token %d is of %s, but %s answers: mend the endpoints, or campaign again after a restore",
			e.Name, ErrOrigin, e.Token, orNone(e.Origin), orNone(e.Known))
	}
	return fmt.Sprintf("fence %q: %v: token %d is of %s, but the fence knows %s up to token %d; if the store was restored or replaced, "+
		"make sure that no leader of the old one runs, then Adopt the new one", e.Name, ErrOrigin, e.Token, orNone(e.Origin), orNone(e.Known), e.Largest)
}

// Unwrap returns [ErrOrigin].
func (e *OriginError) Unwrap() error { return ErrOrigin }

func orNone(origin string) string {
	if origin == "" {
		return "no origin that was told"
	}
	return origin
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("fence: %w: %s", primacy.ErrInvalid, fmt.Sprintf(format, args...))
}
