package primacy

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
)

// tapped is a store that looks at the line after each call that can change it, and can be told to
// do something before a call, or to lose its answer.
type tapped struct {
	*memstore.Store
	t      *testing.T
	held   atomic.Bool // from now on the line of n is never empty
	before atomic.Pointer[func(verb string, owner string) error]
	after  atomic.Pointer[func(verb string, owner string) error]
	line   atomic.Pointer[func()]
	calls  atomic.Int64 // of Transfer
}

type tappedLease struct {
	driver.Lease
	tap   *tapped
	owner string
}

func (s *tapped) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := s.Store.Grant(ctx, owner, ttl)
	return &tappedLease{l, s, owner}, err
}

func (s *tapped) beforeEach(f func(verb, owner string) error) { s.before.Store(&f) }

func (s *tapped) afterEach(f func(verb, owner string) error) { s.after.Store(&f) }

// onLine does something before each read of a line.
func (s *tapped) onLine(f func()) { s.line.Store(&f) }

func (s *tapped) Line(ctx context.Context, name string) (driver.Line, error) {
	if f := s.line.Load(); f != nil && *f != nil {
		(*f)()
	}
	return s.Store.Line(ctx, name)
}

func (l *tappedLease) do(verb string, call func() error) error {
	if f := l.tap.before.Load(); f != nil {
		if err := (*f)(verb, l.owner); err != nil {
			return err
		}
	}
	err := call()
	if line, _ := l.tap.Store.Line(context.Background(), "n"); line.Holder == nil && l.tap.held.Load() {
		l.tap.t.Errorf("after %s of %s nobody holds the name", verb, l.owner)
	}
	if f := l.tap.after.Load(); f != nil && err == nil {
		err = (*f)(verb, l.owner)
	}
	return err
}

func (l *tappedLease) Claim(ctx context.Context, c ...driver.Claim) (p []driver.Place, err error) {
	err = l.do("claim", func() error { p, err = l.Lease.Claim(ctx, c...); return err })
	return p, err
}

func (l *tappedLease) Release(ctx context.Context, p ...driver.Place) error {
	return l.do("release", func() error { return l.Lease.Release(ctx, p...) })
}

func (l *tappedLease) Transfer(ctx context.Context, p driver.Place, successor uint64) error {
	l.tap.calls.Add(1)
	return l.do("transfer", func() error { return l.Lease.(driver.Transferer).Transfer(ctx, p, successor) })
}

// crowd is a line of candidates of one name, in the order in which they came. Whoever wins is
// noted, and leads until told otherwise.
type crowd struct {
	*world
	tap      *tapped
	sessions map[string]*Session
	won      map[string]chan *Term
	stop     map[string]context.CancelFunc
}

// inLine makes a crowd of the first letters given, "abcd": the first leads.
func inLine(t *testing.T, b *world, ids string) *crowd {
	t.Helper()
	c := &crowd{world: b, tap: &tapped{Store: b.store, t: t}, sessions: map[string]*Session{},
		won: map[string]chan *Term{}, stop: map[string]context.CancelFunc{}}
	for _, r := range ids {
		c.stand(string(r), b.session(string(r), c.tap, Options{}))
	}
	return c
}

func (c *crowd) stand(id string, s *Session) {
	c.sessions[id], c.won[id] = s, make(chan *Term, 1)
	ctx, cancel := context.WithCancel(context.Background())
	c.t.Cleanup(func() { c.tap.held.Store(false); cancel() })
	c.stop[id] = cancel
	go func() {
		if term, err := s.Election("n").Campaign(ctx, nil); err == nil {
			c.won[id] <- term
		}
	}()
	synctest.Wait()
}

func (c *crowd) term(id string) *Term {
	c.t.Helper()
	select {
	case t := <-c.won[id]:
		return t
	case <-time.After(time.Hour):
		c.t.Fatalf("%s does not lead; the line is %s", id, c.line())
		return nil
	}
}

// soon bounds what would otherwise be repeated for ever.
func (c *crowd) soon() context.Context {
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	c.t.Cleanup(cancel)
	return ctx
}

func (c *crowd) state() driver.Line {
	line, err := c.store.Line(context.Background(), "n")
	if err != nil {
		c.t.Fatal(err)
	}
	return line
}

// line returns the IDs in the line, the holder's first.
func (c *crowd) line() string {
	line := c.state()
	if line.Holder == nil {
		return ""
	}
	ids := []string{line.Holder.Owner}
	for _, w := range line.Waiters {
		ids = append(ids, w.Owner)
	}
	return strings.Join(ids, "")
}

func (c *crowd) token(id string) uint64 {
	line := c.state()
	for _, s := range append(line.Waiters, *line.Holder) {
		if s.Owner == id {
			return s.Token
		}
	}
	return 0
}

// gone takes a candidate out of the line, as if its process had ended.
func (c *crowd) gone(id string) {
	if token := c.token(id); token != 0 {
		c.stop[id]()
		c.store.Remove("n", token)
	}
}

// leaderLog is what candidates do in these tests: it sees when two lead at once, or when a token is
// not larger than all before.
type leaderLog struct {
	t       *testing.T
	mu      sync.Mutex
	leads   string
	largest Token
	story   string
	ended   []error
}

func (r *leaderLog) begin(id string, term *Term) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.leads != "" {
		r.t.Errorf("%s leads beside %s", id, r.leads)
	}
	if term.Token() <= r.largest {
		r.t.Errorf("%s leads under token %v after %v", id, term.Token(), r.largest)
	}
	r.leads, r.largest, r.story = id, term.Token(), r.story+id
}

func (r *leaderLog) end(term *Term) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leads = ""
	r.ended = append(r.ended, context.Cause(term.Context()))
}

func (r *leaderLog) leaders() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.story
}

// candidate runs a candidate whose work takes its time to stop, and returns what ends it.
func (c *crowd) candidate(r *leaderLog, id string, on driver.Store, o CampaignOptions,
	stopping time.Duration) context.CancelFunc {
	s := c.session(id, on, Options{})
	c.sessions[id] = s
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	c.t.Cleanup(func() { c.tap.held.Store(false); cancel(); <-done })
	go func() {
		defer close(done)
		err := s.Candidate("n", &o).Run(ctx, func(ctx context.Context, term *Term) error {
			r.begin(id, term)
			<-ctx.Done()
			time.Sleep(stopping)
			r.end(term)
			return nil
		})
		if err != nil && ctx.Err() == nil {
			r.t.Errorf("%s: %v", id, err)
		}
	}()
	synctest.Wait()
	return cancel
}
