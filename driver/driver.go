// Package driver is the port between Primacy and a store. Most users never call it: they hand a
// [Store] to primacy.NewSession and use elections and locks. Read it to write a store, or to learn
// what a store must promise.
//
// A store keeps leases and, per name, a line of claims. It stays stupid: deadlines, retries,
// contexts, logs and every decision about leadership are written once, above it. A store may run
// its own streams and watches. It may measure for how long a lease was not renewed, and end it. It
// never decides who leads, and reads no clock to do so.
//
// # Rules for every method
//
//   - The context is obeyed, promptly, also when the network swallows packets. What a call that was
//     given up may still do in the store is said at each method.
//   - [ErrGone], [ErrTaken], [ErrRefused] and [ErrNoSuccessor] are final answers ([IsFinal]). Any
//     other error means that the outcome is unknown: the call may have happened, or may happen
//     later. The caller repeats it with the same claim ID or place.
//   - Methods may be called by many goroutines at once, but for Renew and News, of which one each is
//     in flight for a lease.
//
// The suite in package drivertest holds a store to every clause of this page.
package driver

import (
	"context"
	"time"
)

// Store is where leases and claims live. It is safe for concurrent use.
type Store interface {
	// Caps tells what the store does by itself. It does not change and does no I/O.
	Caps() Caps

	// Grant makes a lease: the store's promise to keep the lease's claims until ttl after its last
	// renewal, and to remove them all by itself some time after that. Owner is the identity shown
	// to observers beside each claim. A ttl the store cannot keep exactly is rounded up; Lease.TTL
	// tells. A Grant whose outcome is unknown may leave a lease without claims behind, which
	// expires by itself.
	Grant(ctx context.Context, owner string, ttl time.Duration) (Lease, error)

	// Line returns the line of name as it stands at some instant between call and return
	// (Caps.Linearizable), not before. A name never used has an empty line, which is no error.
	Line(ctx context.Context, name string) (Line, error)

	// Next blocks until the line of name differs from the one whose revision is after, then returns
	// it. It returns at once where it differs already. States, not events: a caller that comes late
	// finds the present state and loses only what is over. It never returns an older line than
	// after.
	Next(ctx context.Context, name string, after uint64) (Line, error)

	// Lines returns the lines of all names that begin with prefix and in which somebody stands,
	// ordered by name.
	Lines(ctx context.Context, prefix string) ([]Line, error)

	// Revoke ends the lease of that ID ([Lease.ID]) and with it every claim, at once: for a caller
	// that has seen the lease's process and all its work die, and for an operator. What is gone
	// already is no error.
	Revoke(ctx context.Context, lease string) error

	// Examine looks at everything that a session standing for name needs: servers, their versions,
	// space, permissions. It changes nothing. A server that does not answer is a finding; what was
	// not found out when ctx ends is one too. It is for people: no decision rests on it.
	Examine(ctx context.Context, name string) []Finding

	// Close frees what the store opened by itself (streams, goroutines). A client handed in by the
	// caller stays open, and leases stay in the store until they end.
	Close() error
}

// Lease is a lease in a store, with the claims made under it.
type Lease interface {
	// ID names the lease in the store, as Entry.Lease shows it.
	ID() string

	// TTL is the time to live as the store granted it, which may be more than was asked for.
	TTL() time.Duration

	// Renew asks the store to start the ttl afresh. Nil means: the lease lives at least TTL, on the
	// clock of whoever ends it, from the moment Renew was CALLED. The store answers nil only if it
	// knows that no other leader of the store's own cluster can have ended the lease meanwhile.
	// [ErrGone] is final: a lease never comes back. Renewing covers all claims. It is called each
	// fifth of the ttl by default; from a ttl of 7 s on half as often while no claim is held,
	// unless Caps.ChainedRenew.
	Renew(ctx context.Context) error

	// Claim enters claims and returns their places in the same order. It is idempotent by Claim.ID:
	// a caller that lost the answer repeats the call, and the same ID finds its place again, with
	// the value that it has by then. One lease has at most one claim for each name and seat: the
	// store removes a claim of an earlier ID before it enters one under a new ID.
	//
	// [ErrTaken]: a claim with Try does not hold at once. [ErrGone]: the lease, or the claim of
	// that ID, is no more. [ErrRefused]: also where the line has shared claims with other Slots, or
	// that claim itself stands with other ones.
	//
	// A final answer may concern one of several claims. This call then leaves nothing in the line
	// of that claim, nor of any with Try. Its others may stand, or may have been given up: the
	// caller repeats them, one by one or in halves, or releases them. What an earlier call of the
	// same ID has left may stand too: the caller releases it by ID.
	Claim(ctx context.Context, claims ...Claim) ([]Place, error)

	// Follow has News tell, once for each place and call, as soon as the store finds out that the
	// place is held (Held). It does no I/O and does not block. The store follows a place until it
	// is removed, which News tells as Gone; until the store refuses for good to be asked about it,
	// which News tells as Refused; or until its owner gives it up, which News does not tell.
	//
	// Held means: at some instant after the place entered and before News returned, it was held.
	// The store knows this by a read; or it has heard of every removal from the line since the
	// place entered, and so of the place's own too. If the place is known to have gone by then,
	// News tells Gone, never Held. The store tells those whom a release lets hold, never all who
	// wait. It never relies on one signal alone: where a push can be lost there is a timer beside
	// it.
	Follow(places ...Place)

	// Update replaces the value that observers see, of a place that is held or waits: that is a
	// change of its line, which Next tells. The place keeps its order and its token. The value is
	// replaced when Update returns nil. An Update whose outcome is unknown may be carried out
	// later, and replace the value of a later Update. Updates whose calls overlap take effect in
	// any order.
	// [ErrGone] if the place no longer stands.
	Update(ctx context.Context, p Place, value []byte) error

	// Release gives places up, held or waiting. A place with a token is removed only if it still
	// has that token; a place without one (its Claim's outcome was unknown) by its claim ID. Once
	// Release has returned nil, no call of Claim with that ID can enter the line any more, also one
	// that began during the Release. What is gone already is no error. Never by name or identity
	// alone: a late Release must not hurt a successor.
	Release(ctx context.Context, places ...Place) error

	// News blocks until something happened to places of this lease that its owner did not do, and
	// returns it: a place that was removed, or a request from outside. Each piece is told at least
	// once while the lease lives; a removed place as soon as the store can push it. [ErrGone] once
	// the lease itself is known to be gone.
	News(ctx context.Context) ([]News, error)

	// Close ends the lease and with it every claim, at once. What is gone already is no error.
	Close(ctx context.Context) error
}

// Claim is what a candidate asks for: a place in the line for a name.
//
// Slots says beside whom it may hold. An exclusive claim (0) holds when it is the first of the
// line. A shared one with n slots holds when fewer than n claims stand before it, none of them
// exclusive. So an exclusive claim that waits lets nobody overtake it.
type Claim struct {
	Name  string
	Seat  string // tells claims of one lease on one name apart: at most 16 letters and digits, or empty
	Slots int    // 0: exclusive; n: at most n hold at once; Unlimited: shared by any number
	ID    string // unique for ever; chosen by the caller
	Value []byte // shown to observers
	Try   bool   // only if it holds at once
}

// Unlimited, as Claim.Slots, lets any number of shared claims hold at once: readers.
const Unlimited = -1

// Place is a claim that was entered.
type Place struct {
	Name  string
	Seat  string // the claim's, as Slots and ID are
	Slots int
	ID    string
	Token uint64 // fencing token; with Caps.FIFO it is final already while waiting. 0: not known
	Held  bool   // it holds: for an exclusive claim, it is the first of the line

	// Record, if not nil, is for the journal named Journal. The call that removes the place
	// ([Lease.Release], [Transferer]) puts it there, in the same step where the store can; it
	// replaces a record with the same key. A call that finds the place gone puts nothing, nor does
	// a store that is no [Journal]. A place is given up also where its record cannot be kept.
	Record  *Record
	Journal string
}

// Line is the state of a name: who holds it and who waits.
type Line struct {
	Name     string
	Revision uint64  // grows with each change of the line; 0 is older than every line
	Holder   *Entry  // the first; nil: nobody holds the name
	Waiters  []Entry // the others, in order with Caps.FIFO, oldest first; nil where the store does not know
}

// Entry is one claim as others see it.
type Entry struct {
	Owner string // identity given to Grant; empty for a claim that another program entered
	Lease string // the lease's ID; empty for a claim without one
	Slots int    // the claim's
	Held  bool   // it holds, beside the first where both are shared
	Token uint64
	Value []byte
	Note  string // what is odd about it, for people: "has no lease: it never expires"
}

// News is something that happened to a place and that its owner did not do.
type News struct {
	Place   Place
	Gone    bool     // the place was removed
	Held    bool     // the place, which was followed while it waited, is held: see [Lease.Follow]
	Refused error    // the store refuses to follow the place: an ErrRefused; see [Lease.Follow]
	Request *Request // what somebody else asks for; nil with any of the others
}

// Request asks a holder to give its place up. The holder decides.
type Request struct {
	Token    uint64 `json:"token,string"` // the term it is meant for
	By       string `json:"by"`           // who asks
	Reason   string `json:"reason,omitempty"`
	To       string `json:"to,omitempty"`       // hand over to this owner's claim; empty: to whoever is next
	Priority int    `json:"priority,omitempty"` // not 0: only if the holder's own priority is smaller
}

// What follows is optional: a store has it or not, and the library asks by a type assertion.

// Asker is a [Store] that can carry a request to a holder.
type Asker interface {
	// Ask delivers r to whoever holds name under r.Token, as News. [ErrGone] if that term is over.
	// The request is forgotten with the term, so a late one cannot reach a successor. [ErrRefused]
	// for a claim that is shared.
	Ask(ctx context.Context, name string, r Request) error
}

// Transferer is a [Lease] that can hand a name to a claim that waits, out of turn.
type Transferer interface {
	// Transfer gives p up, which holds its name alone, in favour of the claim whose token is
	// successor. Every claim between the two is removed from the line before, or in the same step,
	// and its owner gets News of it: so tokens and order stay true. There is no moment in which the
	// line is empty, or led by anybody but p and then the successor. [ErrNoSuccessor] if no
	// exclusive claim with that token waits behind p: then p still holds. [ErrRefused] if p waits
	// or is shared, or if the successor's claim is of the same lease. [ErrGone] if p does not
	// stand, which may be the work of an earlier call whose outcome was unknown.
	Transfer(ctx context.Context, p Place, successor uint64) error
}

// Exchanger is a [Lease] that can give a place up and stand again in one request.
type Exchanger interface {
	// Exchange gives p up and enters c, of the same name and another seat, behind all who wait: as
	// Release(p) and after it Claim(c), with their answers, in one step. p is given up whenever the
	// error is nil. After an unknown outcome the caller repeats the two one by one. [ErrRefused],
	// before anything is done, for claims that are shared, for Try and for different names.
	Exchange(ctx context.Context, p Place, c Claim) (Place, error)
}
