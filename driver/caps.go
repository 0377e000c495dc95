package driver

import (
	"errors"
	"fmt"
	"time"
)

// Final answers of a store. Test with errors.Is; every other error leaves the outcome unknown.
var (
	// ErrGone says that a lease or place no longer exists. It never exists again.
	ErrGone = errors.New("no longer in the store")
	// ErrTaken answers a Claim with Try on a name that others hold or wait for. Nothing was left in
	// the line.
	ErrTaken = errors.New("held by another")
	// ErrRefused says that the store will not do it, now or when asked again: wrong password, no
	// permission, a value too large, a server too old. Nothing happened.
	ErrRefused = errors.New("the store refused")
	// ErrSlots is the [ErrRefused] of a shared claim where others have another number of slots: not
	// the store is wrong, but one of those who asked.
	ErrSlots = fmt.Errorf("%w", ErrRefused)
	// ErrNoSuccessor answers a Transfer to a claim that does not wait in the line. The name was not
	// given up.
	ErrNoSuccessor = errors.New("is not waiting for this election")
)

// TokenLife says for how long tokens of a name keep growing.
type TokenLife int

const (
	TokenNone      TokenLife = iota // the store has no tokens
	TokenUntilLoss                  // until a failover or restart of the store loses acknowledged writes
	TokenDurable                    // as long as the store keeps its data
)

// String returns the token life in words.
func (t TokenLife) String() string {
	switch t {
	case TokenUntilLoss:
		return "until the store loses writes"
	case TokenDurable:
		return "durable"
	}
	return "none"
}

// Caps says what a store does by itself. The library refuses options that the store cannot honour,
// and shows the rest to people.
type Caps struct {
	Store         string        // what it is, with its version: "etcd 3.7.3"
	FIFO          bool          // the oldest claim leads, and the line has an order
	Token         TokenLife     // how long tokens grow
	Push          bool          // changes of a line are pushed; otherwise Next and Follow poll
	ExpiryPush    bool          // the end of a lease is pushed too
	SharedRenewal bool          // one Renew is one request however many claims the lease has
	ChainedRenew  bool          // a Renew proves something only with those shortly before it: none may be left out
	Shared        bool          // claims with Slots can be made
	AtomicBatch   bool          // a Claim or Release of several names happens as a whole
	Gathers       bool          // calls of Append that are made at once travel in few requests; so do those of Records
	Linearizable  bool          // Line never shows a state older than its call
	LinesRestart  bool          // a line that somebody deletes in the store begins anew, with smaller revisions
	ProcessClock  bool          // leases end by this process's own Go timers; only for a store in its memory
	BestEffort    string        // what can make two leaders though clocks keep the bound; empty: nothing
	MinTTL        time.Duration // the least and the largest ttl it can keep
	MaxTTL        time.Duration
	Warnings      []string // what it cannot promise as it is set up, for people
}
