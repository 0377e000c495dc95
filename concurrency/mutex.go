package concurrency

import (
	"context"
	"fmt"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	v3 "go.etcd.io/etcd/client/v3"
	orig "go.etcd.io/etcd/client/v3/concurrency"
)

// Errors of locks. They are the original's own values.
var (
	// ErrLocked answers TryLock where another session holds the lock or waits for it.
	ErrLocked = orig.ErrLocked
	// ErrSessionExpired says that the session, or the key of the lock, is lost. Where it was etcd
	// that did not know the lease, [errors.Is] finds rpctypes.ErrLeaseNotFound in the same error,
	// which is what the original returns.
	ErrSessionExpired = orig.ErrSessionExpired
	// ErrLockReleased answers Unlock where there is nothing to unlock.
	ErrLockReleased = orig.ErrLockReleased
)

// Mutex is a lock among sessions. Within one session it excludes nobody: two Mutexes on one
// prefix share the session's one key, both lock at once, and one Unlock unlocks both. It is safe
// for concurrent use.
type Mutex struct {
	s   *Session
	pfx string
	at  place
}

// NewMutex returns the lock of all keys that begin with pfx + "/".
func NewMutex(s *Session, pfx string) *Mutex {
	s.claims.usePrefix(pfx + "/")
	return &Mutex{s: s, pfx: pfx + "/", at: place{s: s, lock: true, position: position{rev: -1}}}
}

// TryLock locks if no other session holds the lock or waits for it, else it returns ErrLocked and
// has left nothing behind.
func (m *Mutex) TryLock(ctx context.Context) error {
	in, err := m.s.lines.enter(ctx, m.pfx, "", true)
	if err != nil {
		return expired(err)
	}
	if !in.held { // another Mutex of this session waits, or did: the last one to give up deletes the key
		m.s.removals.quit(in.c)
		return ErrLocked
	}
	m.at.take(in.c)
	return m.at.ended(in.c, in.header, nil)
}

// Lock waits for its turn and returns nil once this session holds the lock and can be relied
// upon. When ctx ends it returns ctx.Err() at once, and the key is deleted, in the background if
// etcd does not answer. It returns ErrSessionExpired as soon as the session, or its key, is lost.
//
// Locked already, it returns nil again, and one Unlock is enough. If it fails then, what was
// locked stays locked.
func (m *Mutex) Lock(ctx context.Context) error {
	in, err := m.s.lines.enter(ctx, m.pfx, "", false)
	if err != nil {
		return expired(err)
	}
	m.at.take(in.c)
	h := in.header
	if !in.held {
		h, err = m.s.lines.wait(ctx, in.c, never)
	}
	return m.at.ended(in.c, h, err)
}

// Unlock deletes the key, if it is still the one that was locked with, so that a late one does
// not hurt a lock taken since. After an error it may be called again; meanwhile it is tried on in
// the background. ErrLockReleased if this Mutex is not locked.
func (m *Mutex) Unlock(ctx context.Context) error {
	locked, err := m.at.giveUp(ctx)
	if !locked {
		return ErrLockReleased
	}
	return err
}

// IsOwner is a compare for a Txn of the user's own, which holds as long as the lock is held. It
// never holds where Lock has not returned nil, so not while the Mutex only waits.
func (m *Mutex) IsOwner() v3.Cmp {
	if at, token := m.at.get(); token != 0 {
		return v3.Compare(v3.CreateRevision(at.key), "=", int64(token))
	}
	// No key has it. The session's is one that the user may compare.
	return v3.Compare(v3.CreateRevision(m.s.key(m.pfx)), "=", -1)
}

// Key returns the key that the lock is held or waited for with. Token tells which.
func (m *Mutex) Key() string {
	at, _ := m.at.get()
	return at.key
}

// Token returns the fencing token of this lock, the create revision of its key: larger than that
// of every earlier holder. It is 0 where it is not locked, while Lock only waits, and as soon as
// an Unlock has begun, also that of another Mutex of this session on the same prefix.
// Header().Revision is not one: after a wait it is larger than the token of the next holder.
func (m *Mutex) Token() uint64 {
	_, token := m.at.get()
	return token
}

// Header is the response header of the call that showed the lock to be held.
func (m *Mutex) Header() *pb.ResponseHeader {
	at, _ := m.at.get()
	return at.header
}

// expired makes an answer that knows no lease the end of the session that it is, and keeps what
// etcd said.
func expired(err error) error {
	if missing(err) {
		return fmt.Errorf("%w: %w", ErrSessionExpired, err)
	}
	return err
}

type locker struct{ *Mutex }

// NewLocker returns a sync.Locker on a Mutex. As in the original, its methods wait as long as the
// client lives, and panic on an error.
func NewLocker(s *Session, pfx string) sync.Locker { return &locker{NewMutex(s, pfx)} }

func (l *locker) Lock() {
	if err := l.Mutex.Lock(l.s.client.Ctx()); err != nil {
		panic(err)
	}
}

func (l *locker) Unlock() {
	if err := l.Mutex.Unlock(l.s.client.Ctx()); err != nil {
		panic(err)
	}
}
