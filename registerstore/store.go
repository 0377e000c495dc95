package registerstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// Options sets a store up. The zero value works.
type Options struct {
	// Name is what the storage is, for people: "S3 bucket locks". Default "register". It must not
	// contain a password.
	Name string
	// Prefix begins every key. Several stores in one storage need prefixes of which none begins
	// with another.
	Prefix string
	// Poll is how often a line is looked at that somebody waits for: where the register is no
	// Watcher, the time a hand-over takes. With one it is the second signal, for watches that went
	// deaf. Default 250 ms, with a Watcher 5 s.
	Poll time.Duration
	// Patience is how long one background read may take before it is tried again. Default 10 s.
	Patience time.Duration
	// Token says for how long the register keeps what it acknowledged. Default driver.TokenDurable.
	// A storage that loses acknowledged writes when it fails over says driver.TokenUntilLoss.
	Token driver.TokenLife
	// MinTTL is the least ttl; a shorter one is rounded up to it. It should be ten times what a Put
	// takes on a bad day. Default 1 s.
	MinTTL time.Duration
	// MaxTTL is the largest ttl; a longer one is refused. Default 1 h.
	MaxTTL time.Duration
	// Journal is how many bytes of records a journal keeps at most, whatever was asked for: it is
	// one value. Default 1 MiB, at least 64 KiB.
	Journal int
	// Warnings go to Caps: what the storage cannot promise as it is set up.
	Warnings []string
	// Close, if set, is called by Store.Close: it frees what the register opened.
	Close func() error
}

// Store is a store over a register.
type Store struct {
	access
	journalStore
	over float64 // by how much the silence after which a lease is ended is longer than its ttl

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	feeds    map[string]*feed
	expiries map[string]*expiryWatch
	brief    map[string]bool
	sweeps   sync.Once
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
	if o.Name == "" {
		o.Name = "register"
	}
	if o.Poll == 0 {
		o.Poll = 250 * time.Millisecond
		if watcher != nil {
			o.Poll = 5 * time.Second
		}
	}
	for _, d := range []struct {
		at       *time.Duration
		default_ time.Duration
	}{{&o.Patience, 10 * time.Second}, {&o.MinTTL, time.Second}, {&o.MaxTTL, time.Hour}} {
		if *d.at == 0 {
			*d.at = d.default_
		}
	}
	if o.Token == driver.TokenNone {
		o.Token = driver.TokenDurable
	}
	if o.Journal == 0 {
		o.Journal = 1 << 20
	}
	if o.Poll < 0 || o.Patience < 0 || o.MinTTL < 0 || o.MaxTTL < o.MinTTL || o.Journal < 1<<16 {
		return nil, fmt.Errorf("register store: Poll and Patience must be positive, MinTTL <= MaxTTL, Journal at least 65536; got %v, %v, %v, %v, %d",
			o.Poll, o.Patience, o.MinTTL, o.MaxTTL, o.Journal)
	}
	s := &Store{
		access: access{r, watcher, o}, over: overTTL,
		feeds: map[string]*feed{}, expiries: map[string]*expiryWatch{}, brief: map[string]bool{},
	}
	s.journalStore.access = &s.access
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s, nil
}

// Caps implements [driver.Store].
func (s *Store) Caps() driver.Caps {
	return driver.Caps{
		Store: s.opts.Name, FIFO: true, Token: s.opts.Token, Push: s.watcher != nil, SharedRenewal: true, Shared: true, Linearizable: true,
		MinTTL: s.opts.MinTTL, MaxTTL: s.opts.MaxTTL, Warnings: slices.Clone(s.opts.Warnings),
	}
}

// Close ends what runs in the background. Leases stay until whoever waits behind them ends them.
func (s *Store) Close() error {
	s.mu.Lock()
	was := s.closed
	s.closed = true
	s.mu.Unlock()
	s.stop()
	s.wg.Wait()
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

func (s *Store) spawnLocked(f func()) {
	if !s.closed {
		s.wg.Go(f)
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

// Line implements [driver.Store]. It looks at the leases too: what is over is removed first.
func (s *Store) Line(ctx context.Context, name string) (driver.Line, error) {
	return s.lineNow(ctx, name, map[string]bool{})
}

// lineNow is Line, where alive says of leases that were looked at since the call began whether they
// live.
func (s *Store) lineNow(ctx context.Context, name string, alive map[string]bool) (driver.Line, error) {
	for {
		d, _, err := s.read(ctx, name)
		if err != nil {
			return driver.Line{}, err
		}
		// A lease that is looked at after the document was read, and lives, lived then. Those known
		// before may have ended meanwhile: that is no older than the call.
		ended, err := s.endedOf(ctx, leasesOf(d.Claims), alive)
		if err != nil {
			return driver.Line{}, err
		}
		if len(ended) == 0 {
			return d.show(), nil
		}
		if _, err := s.purge(ctx, name, ended...); err != nil {
			return driver.Line{}, err
		}
	}
}

// endedOf returns which of those leases have ended.
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

// Lines implements [driver.Store]. It is not a picture of one instant: each line is one of its
// own.
func (s *Store) Lines(ctx context.Context, prefix string) ([]driver.Line, error) {
	at := s.opts.Prefix + lines
	keys, err := s.reg.List(ctx, at+prefixPart(prefix))
	if err != nil {
		return nil, s.wrap("list names", err)
	}
	all := make([]driver.Line, len(keys))
	err = together(len(keys), func(i int) error {
		value, version, err := s.look(ctx, keys[i])
		if err != nil || version == "" {
			return err
		}
		name, err := nameOf(keys[i], value)
		if err != nil || !strings.HasPrefix(name, prefix) || s.lineKey(name) != keys[i] {
			return err
		}
		all[i], err = s.lineNow(ctx, name, map[string]bool{})
		return err
	})
	if err != nil {
		return nil, s.wrap("list names", err)
	}
	all = slices.DeleteFunc(all, func(ln driver.Line) bool { return ln.Holder == nil })
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
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
