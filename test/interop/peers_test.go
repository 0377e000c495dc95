//go:build linux

package interop

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	ours "github.com/primacy-go/primacy/concurrency"
)

// The time to live of leases, in seconds: short for those who may die, long for the others, whose
// leases a busy machine must not lose.
const (
	shortTTL = 6
	longTTL  = 30
)

// library is a package with the API of etcd's concurrency: that one unchanged, or ours in its
// place.
type library struct {
	name    string
	session func(c *clientv3.Client, ttl int) (session, error)
}

type session interface {
	Lease() clientv3.LeaseID
	Done() <-chan struct{}
	Orphan()
	Close() error
}

type mutex interface {
	Lock(context.Context) error
	TryLock(context.Context) error
	Unlock(context.Context) error
	Key() string
}

type election interface {
	Campaign(ctx context.Context, value string) error
	Resign(context.Context) error
	Rev() int64
}

// maker is a session that makes what stands in the line.
type maker interface {
	mutex() mutex
	election() election
}

var (
	etcds  = library{"concurrency", newEtcds}
	dropIn = library{"drop-in", newDropIn}
)

type etcdsSession struct{ *concurrency.Session }

func newEtcds(c *clientv3.Client, ttl int) (session, error) {
	s, err := concurrency.NewSession(c, concurrency.WithTTL(ttl))
	return etcdsSession{s}, err
}

func (s etcdsSession) mutex() mutex       { return concurrency.NewMutex(s.Session, linePrefix) }
func (s etcdsSession) election() election { return concurrency.NewElection(s.Session, linePrefix) }

type dropInSession struct{ *ours.Session }

func newDropIn(c *clientv3.Client, ttl int) (session, error) {
	s, err := ours.NewSession(c, ours.WithTTL(ttl))
	return dropInSession{s}, err
}

func (s dropInSession) mutex() mutex       { return ours.NewMutex(s.Session, linePrefix) }
func (s dropInSession) election() election { return ours.NewElection(s.Session, linePrefix) }

// open returns a session on a client of its own, which is closed with the world.
func (l library) open(w *world, id string) session {
	w.Helper()
	s, err := l.session(w.newClient(), w.ttl)
	if err != nil {
		w.Fatal(err)
	}
	w.trace.owns(s.Lease(), id)
	w.atEnd(func() {
		if err := s.Close(); err != nil && !isGone(err) { // it is, where the participant has died
			w.Errorf("close of the session of %s: %v", id, err)
		}
	})
	return s
}

func isGone(err error) bool { return errors.Is(err, rpctypes.ErrLeaseNotFound) }

// alive says whether a session believes in its lease.
func alive(s session) func() bool {
	return func() bool {
		select {
		case <-s.Done():
			return false
		default:
			return true
		}
	}
}

var (
	etcdMutex      = etcds.mutexKind()
	etcdTry        = etcds.tryKind()
	etcdElection   = etcds.electionKind()
	dropInMutex    = dropIn.mutexKind()
	dropInTry      = dropIn.tryKind()
	dropInElection = dropIn.electionKind()
)

func (l library) mutexKind() kind {
	return kind{name: l.name + ".Mutex", dies: leased, join: func(w *world, id string) stander {
		s := l.open(w, id)
		return func(tn *turn) error {
			m := s.(maker).mutex()
			if err := m.Lock(tn.ctx); err != nil {
				return tn.gaveUp(err)
			}
			return w.holdMutex(tn, s, m)
		}
	}}
}

func (l library) tryKind() kind {
	return kind{name: l.name + ".TryLock", try: true, join: func(w *world, id string) stander {
		s := l.open(w, id)
		return func(tn *turn) error {
			m := s.(maker).mutex()
			switch err := m.TryLock(context.Background()); {
			case errors.Is(err, concurrency.ErrLocked): // the drop-in has the same error
				return errTaken
			case err != nil:
				return err
			}
			return w.holdMutex(tn, s, m)
		}
	}}
}

// holdMutex acts as the owner and unlocks. Its token is the key's create revision, not what
// Mutex.Header shows.
func (w *world) holdMutex(tn *turn, s session, m mutex) error {
	rev, err := w.create(context.Background(), m.Key())
	if err != nil {
		return err
	}
	if err := w.holds(tn, scale(rev), alive(s)); err != nil {
		if errors.Is(err, errDied) {
			s.Orphan()
		}
		return err
	}
	return m.Unlock(context.Background())
}

func (l library) electionKind() kind {
	return kind{name: l.name + ".Election", dies: leased, join: func(w *world, id string) stander {
		s := l.open(w, id)
		return func(tn *turn) error {
			e := s.(maker).election()
			if err := e.Campaign(tn.ctx, id); err != nil {
				return tn.gaveUp(err)
			}
			if err := w.holds(tn, scale(uint64(e.Rev())), alive(s)); err != nil {
				if errors.Is(err, errDied) {
					s.Orphan()
				}
				return err
			}
			return e.Resign(context.Background())
		}
	}}
}
