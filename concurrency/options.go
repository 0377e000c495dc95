package concurrency

import (
	"context"

	v3 "go.etcd.io/etcd/client/v3"
	orig "go.etcd.io/etcd/client/v3/concurrency"
)

// SessionOption configures a Session. It is the original's own type: options of either package go
// to both.
type SessionOption = orig.SessionOption

// WithTTL sets the session's TTL in seconds. At 0 or less it is 60 s. etcd may grant more. Above
// 300 s a renewal is trusted for 300 s only.
func WithTTL(ttl int) SessionOption { return orig.WithTTL(ttl) }

// WithLease takes a lease that exists already, so that a process that is started again goes on
// leading with the keys it had.
func WithLease(leaseID v3.LeaseID) SessionOption { return orig.WithLease(leaseID) }

// WithContext gives the session a context: when it ends, NewSession and Close return at once, and
// the session is orphaned: its lease is left to expire.
func WithContext(ctx context.Context) SessionOption {
	return orig.WithContext(context.WithValue(ctx, baseKey{}, ctx))
}

// What follows is software transactional memory, which has nothing to do with leases: it is the
// original's.

// STM is the original's.
type STM = orig.STM

// Isolation is the original's.
type Isolation = orig.Isolation

// The levels of isolation.
const (
	SerializableSnapshot = orig.SerializableSnapshot
	Serializable         = orig.Serializable
	RepeatableReads      = orig.RepeatableReads
	ReadCommitted        = orig.ReadCommitted
)

// STMOption configures NewSTM. It is a type of its own because client 3.6 does not export the
// original's.
type STMOption func(*stmOptions)

type stmOptions struct {
	isolation Isolation
	abort     context.Context
	prefetch  []string
}

// WithIsolation sets the level of isolation. Without it, it is SerializableSnapshot.
func WithIsolation(lvl Isolation) STMOption { return func(o *stmOptions) { o.isolation = lvl } }

// WithAbortContext sets the context that ends the transaction for good.
func WithAbortContext(ctx context.Context) STMOption { return func(o *stmOptions) { o.abort = ctx } }

// WithPrefetch reads keys in one request before the function runs.
func WithPrefetch(keys ...string) STMOption {
	return func(o *stmOptions) { o.prefetch = append(o.prefetch, keys...) }
}

// NewSTM runs a function as a transaction, again and again until nothing it read was changed by
// others.
func NewSTM(c *v3.Client, apply func(STM) error, so ...STMOption) (*v3.TxnResponse, error) {
	o := stmOptions{abort: c.Ctx()}
	for _, f := range so {
		f(&o)
	}
	return orig.NewSTM(c, apply, orig.WithIsolation(o.isolation), orig.WithAbortContext(o.abort),
		orig.WithPrefetch(o.prefetch...))
}

// NewSTMRepeatable is NewSTM with RepeatableReads.
//
// Deprecated: use NewSTM.
func NewSTMRepeatable(ctx context.Context, c *v3.Client, apply func(STM) error) (*v3.TxnResponse, error) {
	return NewSTM(c, apply, WithAbortContext(ctx), WithIsolation(RepeatableReads))
}

// NewSTMSerializable is NewSTM with Serializable.
//
// Deprecated: use NewSTM.
func NewSTMSerializable(ctx context.Context, c *v3.Client, apply func(STM) error) (*v3.TxnResponse, error) {
	return NewSTM(c, apply, WithAbortContext(ctx), WithIsolation(Serializable))
}

// NewSTMReadCommitted is NewSTM with ReadCommitted.
//
// Deprecated: use NewSTM.
func NewSTMReadCommitted(ctx context.Context, c *v3.Client, apply func(STM) error) (*v3.TxnResponse, error) {
	return NewSTM(c, apply, WithAbortContext(ctx), WithIsolation(ReadCommitted))
}
