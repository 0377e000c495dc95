package registerstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// Options sets a store up. The zero value works.
type Options struct {
	Name     string           // the storage, for people, without a password: "S3 bucket locks"; default "register"
	Prefix   string           // begins every key; of the stores in one storage, none begins with another's
	Token    driver.TokenLife // how long the storage keeps what it acknowledged; default driver.TokenDurable
	Warnings []string         // for Caps: what the storage cannot promise as it is set up
	Close    func() error     // if set, Store.Close calls it to free what the register opened

	// Poll is how often a line is looked at that somebody waits for: where the register is no
	// Watcher, the time a hand-over takes. With one it is the second signal, for watches that went
	// deaf, and becomes four times as long while nothing changes. Default 250 ms, with a Watcher
	// 5 s.
	Poll time.Duration
	// Patience is how long one background call may take before it is tried again. Default 10 s.
	Patience time.Duration
	// MinTTL is the least ttl; a shorter one is rounded up to it. It should be ten times what a Put
	// takes on a bad day. Default 1 s. A ttl above MaxTTL is refused. Default 1 h.
	MinTTL, MaxTTL time.Duration
	// Journal is how many bytes of records a journal keeps at most, whatever was asked for: it is
	// one value. Default 1 MiB, at least 64 KiB.
	Journal int
}

// Store is a store over a register.
type Store struct {
	access
	silence float64 // overTTL, but for tests
	sweeps  sync.Once

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup // what runs in the background

	mu       sync.Mutex // also of each feed, lineWait and expiryWatch
	closed   bool
	feeds    map[string]*feed        // by name
	calls    atomic.Uint64           // counts the calls that read or write lines
	expiries map[string]*expiryWatch // by lease
	brief    map[string]bool         // what watchBriefly watches, by lease and name
}

var (
	_ driver.Store   = (*Store)(nil)
	_ driver.Asker   = (*Store)(nil)
	_ driver.Journal = (*Store)(nil)
	_ driver.Admin   = (*Store)(nil)
)

// FromRegister returns a store over r. It does no I/O. An error says what is wrong with o.
func FromRegister(r Register, o Options) (*Store, error) {
	if r == nil {
		return nil, errors.New("register store: there is no register")
	}
	watcher, _ := r.(Watcher)
	poll := 250 * time.Millisecond
	if watcher != nil {
		poll = 5 * time.Second
	}
	o.Name, o.Token, o.Journal = cmp.Or(o.Name, "register"), cmp.Or(o.Token, driver.TokenDurable), cmp.Or(o.Journal, 1<<20)
	o.Poll, o.Patience = cmp.Or(o.Poll, poll), cmp.Or(o.Patience, 10*time.Second)
	o.MinTTL, o.MaxTTL = cmp.Or(o.MinTTL, time.Second), cmp.Or(o.MaxTTL, time.Hour)
	if o.Poll < 0 || o.Patience < 0 || o.MinTTL < 0 || o.MaxTTL < o.MinTTL || o.Journal < 1<<16 {
		return nil, fmt.Errorf("register store: Poll and Patience must be positive, MinTTL <= MaxTTL, "+
			"Journal at least 65536; got %v, %v, %v, %v, %d", o.Poll, o.Patience, o.MinTTL, o.MaxTTL, o.Journal)
	}
	s := &Store{
		access: access{r, watcher, o}, silence: overTTL,
		feeds: map[string]*feed{}, expiries: map[string]*expiryWatch{}, brief: map[string]bool{},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s, nil
}

// Caps implements [driver.Store].
func (s *Store) Caps() driver.Caps {
	return driver.Caps{
		Store: s.opts.Name, FIFO: true, Token: s.opts.Token, Push: s.watcher != nil, SharedRenewal: true, Shared: true,
		Linearizable: true, LinesRestart: true, MinTTL: s.opts.MinTTL, MaxTTL: s.opts.MaxTTL,
		Warnings: slices.Clone(s.opts.Warnings),
	}
}

// Close ends what runs in the background. Leases stay until whoever waits behind them ends them.
func (s *Store) Close() error {
	s.mu.Lock()
	was := s.closed
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.work.Wait()
	if was || s.opts.Close == nil {
		return nil
	}
	return s.opts.Close()
}

// spawn runs f in the background until Close, unless that was called already.
func (s *Store) spawn(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spawnLocked(f)
}

// spawnLocked is spawn where the caller holds mu.
func (s *Store) spawnLocked(f func()) {
	if !s.closed {
		s.work.Go(f)
	}
}

// spawnOr is spawn, and runs f at once after Close.
func (s *Store) spawnOr(f func()) {
	s.mu.Lock()
	closed := s.closed
	s.spawnLocked(f)
	s.mu.Unlock()
	if closed {
		f()
	}
}

// Grant implements [driver.Store].
func (s *Store) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	if ttl <= 0 || ttl > s.opts.MaxTTL {
		return nil, fmt.Errorf("ttl %v is not between 0 and %v: %w", ttl, s.opts.MaxTTL, driver.ErrRefused)
	}
	l := &lease{
		ownClaims: newOwnClaims(s, newID()), owner: owner, ttl: max(ttl, s.opts.MinTTL),
		renewing: make(chan struct{}, 1), reading: make(chan struct{}, 1),
	}
	s.sweeps.Do(s.sweepNowAndThen)
	version, ok, err := s.reg.Put(ctx, s.leaseKey(l.id), l.beat(0), "")
	if err == nil && !ok { // by a repetition of the request, for nobody else has this ID
		var st leaseState
		if st, err = s.leaseNow(ctx, l.id); err == nil && st.over() {
			err = fmt.Errorf("a lease that was just made is not there")
		}
		version = st.version
	}
	if err != nil {
		return nil, s.wrap("make a lease", err)
	}
	l.version = version
	return l, nil
}

// Line implements [driver.Store]. It looks at the leases too: what is over is removed first.
func (s *Store) Line(ctx context.Context, name string) (driver.Line, error) {
	alive := map[string]bool{}
	for {
		d, _, err := s.read(ctx, name)
		if err != nil {
			return driver.Line{}, err
		}
		// A lease that is looked at after the document was read, and lives, lived then. Those known
		// before may have ended meanwhile: that is no older than the call.
		ended, err := s.endedOf(ctx, leasesOf(d.Claims), alive)
		if err == nil && len(ended) == 0 {
			return d.show(), nil
		}
		if err == nil {
			_, err = s.purge(ctx, name, ended...)
		}
		if err != nil {
			return driver.Line{}, err
		}
	}
}

// endedOf returns which of those leases have ended. Alive says of leases that were looked at since
// the call began whether they live.
func (s *Store) endedOf(ctx context.Context, ids []string, alive map[string]bool) (ended []string, err error) {
	var ask []string
	for _, id := range ids {
		if lives, known := alive[id]; !known {
			ask = append(ask, id)
		} else if !lives {
			ended = append(ended, id)
		}
	}
	states := make([]leaseState, len(ask))
	err = together(len(ask), func(i int) (err error) {
		states[i], err = s.leaseNow(ctx, ask[i])
		return err
	})
	for i, st := range states {
		if err == nil {
			alive[ask[i]] = !st.over()
			if st.over() {
				ended = append(ended, ask[i])
			}
		}
	}
	return ended, err
}

// Lines implements [driver.Store]. Each line is a state of its own: there need not have been an
// instant at which all of them stood so.
//
// It reads each document once and each lease once, however many claims that has: an assigner of
// shards lists hundreds of lines of a few leases.
func (s *Store) Lines(ctx context.Context, prefix string) (all []driver.Line, err error) {
	var mu sync.Mutex
	var docs []*document
	var claims []claim
	call := s.calls.Add(1)
	err = s.each(ctx, lines, prefix, func(name string, value []byte, version string) error {
		d, err := parse(name, value, version)
		if err != nil {
			return err
		}
		d.call = call
		s.offer(name, d, version)
		mu.Lock()
		defer mu.Unlock()
		docs, claims = append(docs, d), append(claims, d.Claims...)
		return nil
	})
	alive := map[string]bool{}
	if err == nil { // a lease that lives now lived when the documents were read
		_, err = s.endedOf(ctx, leasesOf(claims), alive)
	}
	if err == nil {
		err = together(len(docs), func(i int) error {
			ln := docs[i].show()
			if slices.ContainsFunc(docs[i].Claims, func(c claim) bool { return !alive[c.Lease] }) {
				var err error
				if ln, err = s.Line(ctx, ln.Name); err != nil {
					return err
				}
			}
			if ln.Holder != nil {
				mu.Lock()
				defer mu.Unlock()
				all = append(all, ln)
			}
			return nil
		})
	}
	if err != nil {
		return nil, s.wrap("list names", err)
	}
	slices.SortFunc(all, func(a, b driver.Line) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// together runs f for 0 to n-1, some beside each other, and returns the first error.
func together(n int, f func(i int) error) error {
	if n == 1 {
		return f(0)
	}
	var wg sync.WaitGroup
	errs := make([]error, n)
	turns := make(chan struct{}, 16)
	for i := range n {
		turns <- struct{}{}
		wg.Go(func() {
			errs[i] = f(i)
			<-turns
		})
	}
	wg.Wait()
	i := slices.IndexFunc(errs, func(err error) bool { return err != nil })
	if i < 0 {
		return nil
	}
	return errs[i]
}
