package redlockstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// Store is a client of the N servers. It implements driver.Store.
type Store struct {
	cfg     Config
	quorum  int
	servers []*server
	ctx     context.Context // ends with Close
	stop    context.CancelFunc
	locked  []string       // why servers did not let us in when the store was opened
	back    sync.WaitGroup // what runs in the background

	mu      sync.Mutex
	changed chan struct{}      // closed when a server was probed
	runs    map[string]*server // by the ID of the process
	views   views
	hub     hub
}

var (
	_ driver.Store = (*Store)(nil)
)

// maxLimit is the longest time that one call on one server may take.
const maxLimit = time.Second

// limitOf is how long one server may take for one call under a lease with that ttl, a new
// connection included. Others are not held up by it: an outcome is decided by those that answer.
// Only where it is not, the first call that meets with a silent server takes so long.
func limitOf(ttl time.Duration) time.Duration {
	return min(max(ttl/4, 500*time.Millisecond), maxLimit)
}

func newStore(c Config) *Store {
	s := &Store{cfg: c, quorum: len(c.Addrs)/2 + 1, changed: make(chan struct{}), runs: map[string]*server{}}
	s.views.all = map[string]*view{}
	s.ctx, s.stop = context.WithCancel(context.Background())
	for i := range c.Addrs {
		s.servers = append(s.servers, newServer(s, i))
	}
	for _, v := range s.servers {
		v.probe()
	}
	return s
}

// wake lets who waits for servers look again.
func (s *Store) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
}

// sameProcess returns the address of another server that is the same process, or "". The first to
// say so is taken for the one.
func (s *Store) sameProcess(v *server, runID string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.runs[runID]; o != nil && o != v {
		return o.addr
	}
	for old, o := range s.runs {
		if o == v {
			delete(s.runs, old) // its former life
		}
	}
	s.runs[runID] = v
	return ""
}

// Caps tells what a majority of Redis servers can do: no token, no line, nothing shared.
func (s *Store) Caps() driver.Caps {
	form := fmt.Sprintf("redis quorum of %d", len(s.servers))
	warnings := []string{
		"a majority of Redis servers has no fencing tokens: nothing refuses a write that a paused leader sends late",
		"it has no queue: after a release whoever asks first holds, and all who wait ask",
		"a step of a server's clock, or a server that loses its memory and is trusted too early, can make two leaders",
	}
	if s.cfg.Plain {
		form += ", plain keys"
		warnings = append(warnings, "plain keys tell others nothing: who locks them through another library is shown without a name")
	}
	if s.cfg.Guard < 0 {
		warnings = append(warnings, "the guard is off: a server that comes back without its keys makes two leaders")
	}
	for _, why := range s.locked {
		warnings = append(warnings, why+": this server did not let us in when the store was opened; a majority did")
	}
	if n := len(s.servers); n > 1 && n%2 == 0 {
		warnings = append(warnings, fmt.Sprintf("%d servers bear the loss of no more than %d do", n, n-1))
	}
	return driver.Caps{
		Store: form, Token: driver.TokenNone, Push: !s.cfg.Plain, SharedRenewal: true,
		MinTTL: minTTL, MaxTTL: s.cfg.MaxTTL, Warnings: warnings,
	}
}

// Grant makes a lease, once a majority of the servers has answered that counts. The servers know
// nothing of it: it is over when it was not renewed for its ttl, by this machine's clock that
// counts suspended time. Its claims end by the servers' clocks, not before it.
func (s *Store) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	if ttl <= 0 || ttl > s.cfg.MaxTTL {
		return nil, fmt.Errorf("ttl %v is not between 0 and %v: %w", ttl, s.cfg.MaxTTL, driver.ErrRefused)
	}
	ttl = max(minTTL, (ttl + time.Millisecond - 1).Truncate(time.Millisecond))
	l := &lease{
		s: s, owner: owner, id: rand.Text(), ttl: ttl, limit: limitOf(ttl), gate: make(chan struct{}, 1), renewed: boottime.Now(),
		claims: map[storeutil.Seat]*claim{}, added: make(chan struct{}), done: make(chan struct{}),
	}
	if _, err := l.prolong(ctx, nil); err != nil {
		return nil, fmt.Errorf("grant: %w", err)
	}
	return l, nil
}

// again repeats a call on all servers that found no majority, for a moment: one whose connections
// have ended, or that was busy, is back by then.
func (s *Store) again(ctx context.Context, do func() error) (err error) {
	for n := range 4 {
		if err = do(); err == nil || errors.Is(err, driver.ErrRefused) || errors.Is(err, driver.ErrGone) {
			return err
		}
		select {
		case <-time.After(25 * time.Millisecond << n):
		case <-ctx.Done():
			return err
		case <-s.ctx.Done():
			return err
		}
	}
	return err
}

// Close ends what runs in the background. Leases stay in the servers until they end.
func (s *Store) Close() error {
	s.mu.Lock()
	s.stop()
	s.mu.Unlock()
	s.back.Wait()
	var all []error
	for _, v := range s.servers {
		all = append(all, v.rdb.Close())
	}
	return errors.Join(all...)
}

// key is the key of a name, channel where hints about it are published, mark that of a claim that
// was given up, revoked that of a lease.
func (s *Store) key(name string) string {
	if s.cfg.Plain {
		return name
	}
	return s.cfg.Prefix + ":lock:" + name
}

func (s *Store) channel(name string) string { return s.cfg.Prefix + ":hint:" + name }

func (s *Store) mark(own string) string { return s.cfg.Prefix + ":left:" + own }

func (s *Store) revoked(lease string) string { return s.cfg.Prefix + ":revoked:" + lease }

// run runs f in the background, unless the store is closed.
func (s *Store) run(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return false
	}
	s.back.Go(f)
	return true
}

// await waits until a majority of the servers has answered, and a moment for the others.
func (s *Store) await(ctx context.Context) error {
	moment := time.After(250 * time.Millisecond)
	for rest := false; ; {
		up, refused, locked := 0, 0, 0
		var last error
		var away, shut error // of a server that refuses the connection, of one that does not let us in
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		for _, v := range s.servers {
			var unfit refusal
			switch err := v.state(); {
			case err == nil:
				up++
			case errors.As(err, &unfit):
				return err // a server that may not be in the list
			case errors.Is(err, driver.ErrRefused): // one that does not let us in votes no more than one that is away
				if locked++; locked > len(s.servers)-s.quorum {
					return err
				}
				last, shut = err, err
			case errors.Is(err, errNotReached) || isTimeout(err):
				if refused == 0 {
					last = err
				}
			default:
				last, away = err, err
				refused++
			}
		}
		if up+locked == len(s.servers) || up >= s.quorum && rest {
			return nil
		}
		switch lost := refused+locked > len(s.servers)-s.quorum; {
		case lost && shut != nil: // no driver.ErrRefused: those that refuse the connection may come up
			return fmt.Errorf("%w; %v", away, shut)
		case lost:
			return away
		}
		select {
		case <-changed:
		case <-moment:
			rest = true
		case <-ctx.Done():
			return fmt.Errorf("%d of %d servers answered, %d are needed (%w; the last said: %w)", up, len(s.servers), s.quorum, ctx.Err(), last)
		}
	}
}

// trusted says whether enough servers count, and if not, why.
func (s *Store) trusted() error {
	now, n, wait := boottime.Now(), 0, time.Duration(0)
	for _, v := range s.servers {
		left := v.guarded(now)
		if left <= 0 {
			n++
		}
		wait = max(wait, left)
	}
	if n >= s.quorum {
		return nil
	}
	return fmt.Errorf("%d of %d servers were started less than %v ago and may have lost keys: they do not count for up to %v yet",
		len(s.servers)-n, len(s.servers), s.cfg.Guard, (wait + time.Second - 1).Truncate(time.Second))
}

// answer is what one server said.
type answer[T any] struct {
	at  int
	got T
	err error
}

// values is what a script answers.
type values = answer[[]any]

// askAll asks all servers at once. Each answers, also if nobody listens any more.
func askAll[T any](s *Store, do func(v *server) (T, error)) <-chan answer[T] {
	answers := make(chan answer[T], len(s.servers))
	for _, v := range s.servers {
		ask := func() {
			got, err := do(v)
			answers <- answer[T]{v.at, got, err}
		}
		if !s.run(ask) {
			answers <- answer[T]{at: v.at, err: errClosed}
		}
	}
	return answers
}

// gather takes the answers of all servers in, until take says that they are enough or ctx ends.
func gather[T any](ctx context.Context, s *Store, answers <-chan answer[T], take func(answer[T]) (enough bool)) error {
	for range s.servers {
		select {
		case a := <-answers:
			if take(a) {
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// everywhere does something on all servers that answer, and hands on what each says. It returns an
// error unless a majority has done it.
func everywhere[T any](ctx context.Context, s *Store, do func(*server) (T, error), each func(T)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	n := newCount(s, 0)
	err := gather(ctx, s, askAll(s, func(v *server) (got T, err error) {
		if err = v.state(); err == nil {
			got, err = do(v)
		}
		return got, err
	}), func(a answer[T]) bool {
		n.add(values{at: a.at, err: a.err}, 0)
		each(a.got)
		return false
	})
	if err != nil || n.failed > len(s.servers)-s.quorum {
		return n.error(err)
	}
	return nil
}

var errClosed = errors.New("the store was closed")
