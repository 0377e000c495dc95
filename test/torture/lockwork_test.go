//go:build linux

package torture

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/internal/boottime"
)

// The kinds of locks that a worker contends for, and what it asks of them.
const (
	kindMutex     = "mutex"
	kindRW        = "rw"
	kindSemaphore = "semaphore"
	kindBare      = "bare" // a mutex of a store without tokens

	lockNames = 3 // of each kind
	lockSlots = 3 // of each semaphore
)

var lockKinds = []string{kindMutex, kindRW, kindSemaphore}

// The environment of a worker that contends for locks.
const (
	locksEnv   = "TORTURE_LOCKS"   // the kinds, with commas
	loopsEnv   = "TORTURE_LOOPS"   // how many of its goroutines contend for each kind
	lockersEnv = "TORTURE_LOCKERS" // etcd: by etcd's own package, and mutexes only; otherwise by this library
)

// lockCall is one thing to ask for: the kind of lock, its name, for reading or not, and only if it
// is free now or not.
type lockCall struct {
	kind, name string
	read, try  bool
}

// String is the call as the record has it.
func (c lockCall) String() string {
	text := map[string]string{kindMutex: "lock", kindRW: "lock", kindSemaphore: "acquire", kindBare: "lock"}[c.kind]
	if c.read {
		text = "rlock"
	}
	if c.try {
		text = "try" + text
	}
	return text
}

// possession is a lock that is held.
type possession struct {
	token    uint64
	check    func() error         // whether it still is
	deadline func() time.Duration // until when, as far as is known; 0: not at all
	free     func(ctx context.Context) error
}

// taker takes a lock. It waits until ctx ends, if it has to.
type taker func(ctx context.Context, c lockCall) (*possession, error)

// byPrimacy takes locks by this library.
func byPrimacy(s *primacy.Session) taker {
	return func(ctx context.Context, c lockCall) (*possession, error) {
		term, err := askPrimacy(ctx, s, c)
		if err != nil {
			return nil, err
		}
		return &possession{numbered(uint64(term.Token())), term.Check, term.Deadline, term.Resign}, nil
	}
}

func askPrimacy(ctx context.Context, s *primacy.Session, c lockCall) (*primacy.Term, error) {
	if c.kind == kindSemaphore {
		if m := s.Semaphore(c.name, lockSlots); c.try {
			return m.TryAcquire(ctx)
		} else {
			return m.Acquire(ctx)
		}
	}
	if c.kind == kindBare {
		if m := s.Mutex(c.name, nil); c.try {
			return m.TryLock(ctx)
		} else {
			return m.Lock(ctx)
		}
	}
	m := s.RWMutex(c.name)
	switch {
	case c.read && c.try:
		return m.TryRLock(ctx)
	case c.read:
		return m.RLock(ctx)
	case c.try:
		return m.TryLock(ctx)
	}
	return m.Lock(ctx)
}

// lockRecord is what a worker writes about its locks. One line is one write: a process that is
// killed leaves whole lines. Lines, all times in ns of the boot clock, HOLD a number that one
// process gives out once:
//
//	call AT HOLD KIND NAME CALL            before it asks
//	not CALLED BACK HOLD WHY               it did not get the lock
//	held CALLED BACK HOLD TOKEN DEADLINE   it did
//	yes BEFORE AFTER HOLD DEADLINE         Check said yes between these
//	no BEFORE AFTER HOLD WHY               Check said no; nothing is done under the hold any more
//	free AT HOLD                           before it gives the lock back
//	freed CALLED BACK HOLD WHY             after that
type lockRecord struct {
	id        string
	ops, acts *os.File
	mu        sync.Mutex
	last      int
}

func newLockRecord(id, acts string) (*lockRecord, error) {
	a, err := appendTo(acts)
	if err != nil {
		return nil, err
	}
	ops, err := appendTo(opsFile(acts))
	return &lockRecord{id: id, ops: ops, acts: a}, err
}

// opsFile is where a worker with that file of acts writes about its locks.
func opsFile(acts string) string {
	return filepath.Join(filepath.Dir(acts), strings.Replace(filepath.Base(acts), "acts-", "ops-", 1))
}

func (r *lockRecord) number() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last++
	return r.last
}

func (r *lockRecord) line(format string, values ...any) {
	_, err := fmt.Fprintf(r.ops, format+"\n", values...)
	check(err)
}

// locks contends for locks until ctx ends.
func (w *workerArgs) locks(ctx context.Context) error {
	r, err := newLockRecord(w.id, w.acts)
	if err != nil {
		return err
	}
	var loops int
	if _, err := fmt.Sscan(os.Getenv(loopsEnv), &loops); err != nil {
		return fmt.Errorf("%s: %w", loopsEnv, err)
	}
	take, done, err := w.taker(ctx)
	if err != nil {
		return nil // told to end before there was a store
	}
	defer done()
	var wg sync.WaitGroup
	for _, kind := range strings.Split(os.Getenv(locksEnv), ",") {
		for range loops {
			wg.Go(func() {
				for rng := rand.New(rand.NewPCG(rand.Uint64(), 0)); ctx.Err() == nil; {
					r.visit(ctx, rng, take, draw(rng, w.name, kind))
				}
			})
		}
	}
	wg.Wait()
	return nil
}

// taker returns how locks are taken, and what ends that.
func (w *workerArgs) taker(ctx context.Context) (take taker, done func(), err error) {
	if os.Getenv(lockersEnv) == "etcd" {
		return w.etcdTaker(ctx)
	}
	s, done, err := w.session(ctx)
	if err != nil {
		return nil, nil, err
	}
	return byPrimacy(s), done, nil
}

// draw draws what to ask for next.
func draw(rng *rand.Rand, base, kind string) lockCall {
	c := lockCall{kind: kind, name: fmt.Sprintf("%s/%s%d", base, kind, rng.IntN(lockNames))}
	c.read = kind == kindRW && rng.IntN(4) > 0
	c.try = rng.IntN(8) == 0
	return c
}

// patience is how long a call waits: one in five gives up soon.
func patience(rng *rand.Rand) time.Duration {
	if rng.IntN(5) == 0 {
		return between(rng, 20*time.Millisecond, time.Second)
	}
	return time.Minute
}

// stay is how long a lock is held: mostly for a moment, and now and then for so long that faults
// meet it. What several have at once is held for longer than it takes to get it, or there would
// seldom be several. The control has it for long.
func stay(rng *rand.Rand, c lockCall) time.Duration {
	ms := time.Millisecond
	switch n := rng.IntN(100); {
	case os.Getenv(lockersEnv) == "etcd":
		return between(rng, 500*ms, 2000*ms)
	case n < 2:
		return between(rng, 1000*ms, 3000*ms)
	case c.kind == kindSemaphore:
		return between(rng, 200*ms, 1000*ms)
	case n < 10 || c.read:
		return between(rng, 100*ms, 400*ms)
	}
	return between(rng, ms, 30*ms)
}

// visit asks for a lock, acts while it holds it, and gives it back.
func (r *lockRecord) visit(ctx context.Context, rng *rand.Rand, take taker, c lockCall) {
	hold := r.number()
	limit, cancel := context.WithTimeout(ctx, patience(rng))
	defer cancel()
	call := boottime.Now()
	r.line("call %d %d %s %s %v", call, hold, c.kind, c.name, c)
	p, err := take(limit, c)
	back := boottime.Now()
	if err != nil {
		r.line("not %d %d %d %s", call, back, hold, why(err))
		time.Sleep(between(rng, time.Millisecond, 30*time.Millisecond)) // one that only tries must not spin
		return
	}
	r.line("held %d %d %d %d %d", call, back, hold, p.token, p.deadline())
	r.act(ctx, rng, p, hold, back+stay(rng, c))
	// A release that is not confirmed goes on in the background; and if nothing does any more, the
	// lease runs out.
	limit, cancel = context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	call = boottime.Now()
	r.line("free %d %d", call, hold)
	err = p.free(limit)
	r.line("freed %d %d %d %s", call, boottime.Now(), hold, why(err))
	time.Sleep(between(rng, 0, 100*time.Millisecond)) // or all would stand in all lines, and each fault stop everything
}

// act asks every few milliseconds whether the lock is still held, until it is not or that instant
// has come.
func (r *lockRecord) act(ctx context.Context, rng *rand.Rand, p *possession, hold int, until time.Duration) {
	for {
		before := boottime.Now()
		err := p.check()
		after := boottime.Now()
		if err != nil {
			r.line("no %d %d %d %s", before, after, hold, why(err))
			return
		}
		r.line("yes %d %d %d %d", before, after, hold, p.deadline())
		_, err = fmt.Fprintf(r.acts, "%d %d %s\n", before, p.token, r.id) // for the faults to know whom to reach
		check(err)
		if ctx.Err() != nil || after >= until {
			return
		}
		time.Sleep(between(rng, time.Millisecond, 8*time.Millisecond))
	}
}

// why is a word for an error.
func why(err error) string {
	for _, e := range []error{primacy.ErrHeld, primacy.ErrExpired, primacy.ErrDeposed, primacy.ErrClosed,
		primacy.ErrUnreachable,
		context.DeadlineExceeded, context.Canceled} {
		if errors.Is(err, e) {
			return strings.ReplaceAll(e.Error(), " ", "_")
		}
	}
	if err != nil {
		return strings.ReplaceAll(err.Error(), " ", "_")
	}
	return "ok"
}
