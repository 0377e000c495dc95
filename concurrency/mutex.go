package concurrency

import (
	"context"
	"fmt"
	"strings"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	v3 "go.etcd.io/etcd/client/v3"
	orig "go.etcd.io/etcd/client/v3/concurrency"
)

// Errors of locks. They are the original's own values.
var (
	// ErrLocked answers TryLock where another session holds the lock or waits for it.
	ErrLocked = orig.ErrLocked
	// ErrSessionExpired says that the session, or the key of the lock, is lost.
	ErrSessionExpired = orig.ErrSessionExpired
	// ErrLockReleased answers Unlock where there is nothing to unlock.
	ErrLockReleased = orig.ErrLockReleased
)

// released is a key that nothing stands under.
const released = "\x00"

// Mutex is a lock among sessions. Within one session it excludes nobody: two Mutexes on one prefix share the session's one key, both
// lock at once, and one Unlock unlocks both. It is safe for concurrent use.
type Mutex struct {
	s   *Session
	pfx string

	mu  sync.Mutex
	key string
	rev int64
	hdr *pb.ResponseHeader
}

// NewMutex returns the lock of all keys that begin with pfx + "/".
func NewMutex(s *Session, pfx string) *Mutex {
	s.note(pfx + "/")
	return &Mutex{s: s, pfx: pfx + "/", rev: -1}
}

// TryLock locks if no other session holds the lock or waits for it, else it returns ErrLocked and has left nothing behind.
func (m *Mutex) TryLock(ctx context.Context) error {
	in, err := m.s.enter(ctx, m.pfx, "", true)
	if err != nil {
		return err
	}
	if !in.held { // another Mutex of this session waits
		m.s.mu.Lock()
		in.c.users--
		m.s.mu.Unlock()
		return ErrLocked
	}
	return m.locked(in.c, in.header)
}

// Lock waits for its turn and returns nil once this session holds the lock and can be relied upon. When ctx ends it returns ctx.Err() at once, and
// the key is deleted, in the background if etcd does not answer. It returns ErrSessionExpired as soon as the session, or its key, is lost.
func (m *Mutex) Lock(ctx context.Context) error {
	in, err := m.s.enter(ctx, m.pfx, "", false)
	if err != nil {
		return err
	}
	m.set(in.c.key, in.c.rev)
	h := in.header
	if !in.held {
		h, err = m.s.await(ctx, in.c, never)
	}
	if err == nil {
		return m.locked(in.c, h)
	}
	m.set(released, -1)
	m.s.quit(in.c)
	return err
}

func (m *Mutex) locked(c *claim, h *pb.ResponseHeader) error {
	if m.s.gone() {
		m.set(released, -1)
		m.s.quit(c)
		return ErrSessionExpired
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.key, m.rev, m.hdr = c.key, c.rev, h
	return nil
}

func (m *Mutex) set(key string, rev int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.key, m.rev = key, rev
}

// Unlock deletes the key, if it is still the one that was locked with, so that a late one does not hurt a lock taken since. After an error it may be called
// again; meanwhile it is tried on in the background. ErrLockReleased if this Mutex is not locked.
func (m *Mutex) Unlock(ctx context.Context) error {
	m.mu.Lock()
	key, rev := m.key, m.rev
	m.mu.Unlock()
	if key == "" || key == released || rev <= 0 {
		return ErrLockReleased
	}
	if !strings.HasPrefix(key, m.pfx) {
		return fmt.Errorf("invalid key %q, it should have prefix %q", key, m.pfx)
	}
	if _, err := m.s.release(ctx, key, rev); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.key == key && m.rev == rev {
		m.key, m.rev = released, -1
	}
	return nil
}

// IsOwner is a compare for a Txn of the user's own, which holds as long as the lock is held. It never holds where the Mutex is not locked.
func (m *Mutex) IsOwner() v3.Cmp {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := m.key
	if key == "" {
		key = released
	}
	return v3.Compare(v3.CreateRevision(key), "=", m.rev)
}

// Key returns the key that the lock is held with.
func (m *Mutex) Key() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.key
}

// Token returns the fencing token of this lock, the create revision of its key: larger than that of every earlier holder. It is 0 where
// it is not locked. Header().Revision is not one: after a wait it is larger than the token of the next holder.
func (m *Mutex) Token() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return uint64(max(m.rev, 0))
}

// Header is the response header of the call that showed the lock to be held.
func (m *Mutex) Header() *pb.ResponseHeader {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.hdr
}

type locker struct{ *Mutex }

// NewLocker returns a sync.Locker on a Mutex. As in the original, its methods wait as long as the client lives, and panic on an error.
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
