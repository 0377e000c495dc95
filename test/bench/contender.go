package main

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// Contender is one library on one store. Rows know libraries only through it: another one is a file
// that appends itself to contenders.
type Contender struct {
	Name  string
	Store string // contenders are compared on the same store
	Ours  bool
	Named bool // a peer only where -peer names it
	// Floor says that it is no library but the least that the store itself takes: bare requests and
	// pushes on open connections, without repeats, renewals or any safety, and with an order only
	// where a row is about a line.
	Floor bool
	// Local says that goroutines of one process share a session's lock. Otherwise each has a
	// session of its own on the process's connection, for two goroutines would hold at once.
	Local bool
	// Lease, if not 0, is its TTL in rows in which no lease ends, whatever the row's: for who can
	// only take a free lock after a lease.
	Lease time.Duration
	Dial  func(ctx context.Context, endpoints []string) (Process, error)
}

// Process is what one process of a fleet has: a connection of its own.
type Process interface {
	Session(ctx context.Context, ttl time.Duration) (Session, error)
	MinTTL() time.Duration // the smallest that works
	Close()
}

// Session is a lease that is kept alive.
type Session interface {
	Lock(name string, o LockOptions) Lock
	Campaign(ctx context.Context, name string) (Held, error)
	Close(ctx context.Context) error // ends the lease at once, with all that is held under it
	// Revoke has the store end the lease, as an operator would, without asking who has it.
	Revoke(ctx context.Context) error
}

// LockOptions ask for what a library may not have; then they mean nothing.
type LockOptions struct {
	Turns int // goroutines of the process that hold in a row before others may; 0: the library's own choice
}

// Lock is a lock of one goroutine, or of several where the contender is Local.
type Lock interface {
	Lock(ctx context.Context) (Held, error)
}

// Held is a lock or a leadership that was won.
type Held interface {
	Check() error  // nil: the library says that it is held now
	Token() uint64 // 0: the library has none
	Release(ctx context.Context) error
}

// Crowd is a Session that stands in many elections without a goroutine for each. Without it a row
// starts one for each.
type Crowd interface {
	// Stand stands for all names until ctx ends, and calls won for each that is won.
	Stand(ctx context.Context, names []string, won func(name string, h Held)) error
}

// contenders are all there are, ours first.
var contenders []*Contender

// lease is the contender's TTL where no lease ends.
func (c *Contender) lease(ttl time.Duration) time.Duration {
	if c.Lease > 0 {
		return c.Lease
	}
	return ttl
}

// byName returns the peers asked for on a store, all that it has if none is named.
func byName(store, peers string) ([]*Contender, error) {
	var list []*Contender
	if peers == "" {
		peers = strings.Join(peerNames(store, false), ",")
	}
	for _, name := range strings.Split(peers, ",") {
		c := find(strings.TrimSpace(name))
		if c == nil || c.Ours || c.Floor || c.Store != store {
			known := strings.Join(peerNames(store, true), ", ")
			return nil, fmt.Errorf("-peer %q: known on %s are %s", name, store, known)
		}
		list = append(list, c)
	}
	return list, nil
}

func find(name string) *Contender {
	for _, c := range contenders {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// oursFor returns our own contender on the peer's store.
func oursFor(peer *Contender) *Contender {
	for _, c := range contenders {
		if c.Ours && c.Store == peer.Store {
			return c
		}
	}
	return nil
}

// floorOf returns the store's floor, nil if nothing is measured there.
func floorOf(store string) *Contender {
	for _, c := range contenders {
		if c.Floor && c.Store == store {
			return c
		}
	}
	return nil
}

// peerNames returns the names of all peers on a store; named: also of those that -peer has to name.
func peerNames(store string, named bool) []string {
	var names []string
	for _, c := range contenders {
		if !c.Ours && !c.Floor && c.Store == store && (named || !c.Named) {
			names = append(names, c.Name)
		}
	}
	return names
}
