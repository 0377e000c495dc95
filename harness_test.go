package primacy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
)

// bubble runs f in fake time with a store and a way to open sessions on it whose boot clock is the
// fake one.
func bubble(t *testing.T, f func(t *testing.T, b *world)) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		b := &world{t: t, store: memstore.New(memstore.Options{}), clock: func() time.Duration {
			return time.Since(start) + time.Hour
		}}
		f(t, b)
	})
}

type world struct {
	t     *testing.T
	store *memstore.Store
	clock func() time.Duration
}

// frozenClock has the boot clock of the sessions that are opened later stand still from stop to
// goOn, as if their process did not run.
func (b *world) frozenClock() (stop, goOn func()) {
	clock, stopped := b.clock, &atomic.Int64{} // at which it stands; 0: it goes
	b.clock = func() time.Duration {
		if at := stopped.Load(); at != 0 {
			return time.Duration(at)
		}
		return clock()
	}
	return func() { stopped.Store(int64(clock())) }, func() { stopped.Store(0) }
}

func (b *world) session(id string, on driver.Store, o Options) *Session {
	b.t.Helper()
	if o.ID = id; o.TTL == 0 {
		o.TTL = 10 * time.Second
	}
	s, err := newSession(on, o, b.clock)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { // runs inside the bubble
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = s.Close(ctx)
		time.Sleep(time.Minute) // leases that were left to run out end their goroutines
	})
	return s
}

func (b *world) lead(s *Session, name string) *Term {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	term, err := s.Election(name).Campaign(ctx, &CampaignOptions{Value: []byte("v-" + s.ID())})
	if err != nil {
		b.t.Fatal(err)
	}
	return term
}

// broken is a store whose Renew can be made to hang for ever, deaf to its context, as a bad client
// library does.
type broken struct {
	*memstore.Store
	hang atomic.Pointer[chan struct{}] // while not nil, renewals wait for it
}

type brokenLease struct {
	driver.Lease
	b *broken
}

func (b *broken) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := b.Store.Grant(ctx, owner, ttl)
	return &brokenLease{l, b}, err
}

func (l *brokenLease) Renew(ctx context.Context) error {
	err := l.Lease.Renew(ctx)
	if c := l.b.hang.Load(); c != nil {
		<-*c
	}
	return err
}

func wantEnded(t *testing.T, err error, cause error, by, reason string) {
	t.Helper()
	var e *EndedError
	if !errors.As(err, &e) || !errors.Is(err, cause) || e.By != by || e.Reason != reason {
		t.Errorf("got %v, want %v", err, fmt.Sprintf("%v, by %q (%s)", cause, by, reason))
	}
}

// hooked is a store whose lease calls can be replaced one by one; nil fields pass through.
type hooked struct {
	driver.Store
	claim  func(l driver.Lease, ctx context.Context, c ...driver.Claim) ([]driver.Place, error)
	follow func(l driver.Lease, p ...driver.Place)
	news   func(l driver.Lease, ctx context.Context) ([]driver.News, error)
}

type hookedLease struct {
	driver.Lease
	h *hooked
}

func (h *hooked) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := h.Store.Grant(ctx, owner, ttl)
	if err != nil {
		return nil, err
	}
	return &hookedLease{l, h}, nil
}

func (l *hookedLease) Claim(ctx context.Context, c ...driver.Claim) ([]driver.Place, error) {
	if l.h.claim != nil {
		return l.h.claim(l.Lease, ctx, c...)
	}
	return l.Lease.Claim(ctx, c...)
}

func (l *hookedLease) Follow(p ...driver.Place) {
	if l.h.follow != nil {
		l.h.follow(l.Lease, p...)
		return
	}
	l.Lease.Follow(p...)
}

func (l *hookedLease) News(ctx context.Context) ([]driver.News, error) {
	if l.h.news != nil {
		return l.h.news(l.Lease, ctx)
	}
	return l.Lease.News(ctx)
}

// noNews hears nothing until its context ends: the push is slow, as after a reconnect.
func noNews(_ driver.Lease, ctx context.Context) ([]driver.News, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// past reads the history of a name.
func (b *world) past(name string, limit int) []TermRecord {
	b.t.Helper()
	s, err := newSession(b.store, Options{}, b.clock)
	if err != nil {
		b.t.Fatal(err)
	}
	all, err := s.Election(name).History(context.Background(), limit)
	if err != nil {
		b.t.Fatal(err)
	}
	return all
}

// remove takes a claim out of the store, as an operator does.
func (b *world) remove(t *Term) {
	b.t.Helper()
	if !b.store.Remove(t.Name(), uint64(t.Token())) {
		b.t.Fatalf("no claim of %s to remove", t.Name())
	}
}

func must[T any](t *testing.T) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// What each rule of the locks is held by, one test for each. None waits for ever when its rule is
// broken: a mutation has to fail, not to hang.

// slow is a store whose answers to Claim, and its news that a place is held, come late, while
// something else happens.
type slow struct {
	driver.Store
	claim, news func() // called between the store's answer and its arrival; nil: at once
}

type slowLease struct {
	driver.Lease
	s *slow
}

func (s *slow) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := s.Store.Grant(ctx, owner, ttl)
	if err != nil {
		return nil, err
	}
	return &slowLease{l, s}, nil
}

func (l *slowLease) Claim(ctx context.Context, claims ...driver.Claim) ([]driver.Place, error) {
	places, err := l.Lease.Claim(ctx, claims...)
	if f := l.s.claim; f != nil {
		f()
	}
	return places, err
}

func (l *slowLease) News(ctx context.Context) ([]driver.News, error) {
	news, err := l.Lease.News(ctx)
	if f := l.s.news; f != nil && err == nil && news[0].Held {
		f()
	}
	return news, err
}

// later locks on a goroutine of its own, for at most a minute.
func later(t *testing.T, lock func(ctx context.Context) (*Term, error)) <-chan *Term {
	got := make(chan *Term, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		term, err := lock(ctx)
		if err != nil {
			t.Errorf("not had: %v", err)
		}
		got <- term
	}()
	synctest.Wait()
	return got
}

// soon is what has come after d, nil if nothing has.
func soon(got <-chan *Term, d time.Duration) *Term {
	select {
	case term := <-got:
		return term
	case <-time.After(d):
		return nil
	}
}

// nothingLeft wants a session that keeps nothing of the locks it had.
func nothingLeft(t *testing.T, s *Session) {
	t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queues)+len(s.seats.taken) > 0 {
		t.Errorf("%s keeps %d queues and %d seats", s.ID(), len(s.queues), len(s.seats.taken))
	}
	for l := range s.leases {
		if n := l.held.Load(); n != 0 {
			t.Errorf("%s counts %d held claims, and has none", s.ID(), n)
		}
	}
}

func laterErr(f func(ctx context.Context) (*Term, error), ctx context.Context) chan error {
	got := make(chan error, 1)
	go func() {
		term, err := f(ctx)
		if term != nil {
			defer term.Resign(context.Background())
		}
		got <- err
	}()
	return got
}

// holds wants a line that one claim holds, or nobody.
func (b *world) holds(name string, want uint64) {
	b.t.Helper()
	synctest.Wait()
	ln := must[driver.Line](b.t)(b.store.Line(context.Background(), name))
	if ln.Holder == nil && want != 0 || ln.Holder != nil && ln.Holder.Token != want {
		b.t.Errorf("%s is held by %+v, want the claim %d", name, ln.Holder, want)
	}
}

func (b *world) emptyLines(names ...string) {
	b.t.Helper()
	for _, name := range names {
		if line, _ := b.store.Line(context.Background(), name); line.Holder != nil {
			b.t.Errorf("a claim stands on %s: %+v", name, *line.Holder)
		}
	}
}

// rounds repeats a race on the real clock for a while.
func rounds(t *testing.T, f func(i int)) {
	for i, until := 0, time.Now().Add(300*time.Millisecond); time.Now().Before(until) && !t.Failed(); i++ {
		f(i)
	}
}

// outside is a session outside a bubble, where real races happen.
func outside(t *testing.T) *Session {
	s := must[*Session](t)(NewSession(memstore.New(memstore.Options{}), &Options{ID: "a", TTL: 30 * time.Second}))
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	return s
}

// plain is a store that cannot carry requests or hand over.
type plain struct{ driver.Store }

type plainLease struct{ driver.Lease }

func (s plain) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := s.Store.Grant(ctx, owner, ttl)
	return plainLease{l}, err
}

// tapped is a store that looks at the line after each call that can change it, and can be told to
// do something before a call, or to lose its answer.
type tapped struct {
	*memstore.Store
	t      *testing.T
	held   atomic.Bool // from now on the line of n is never empty
	before atomic.Pointer[func(verb string, owner string) error]
	after  atomic.Pointer[func(verb string, owner string) error]
	line   atomic.Pointer[func()]
	append atomic.Pointer[func()]
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

// onAppend does something before each record that is written.
func (s *tapped) onAppend(f func()) { s.append.Store(&f) }

func (s *tapped) Append(ctx context.Context, name string, r driver.Record, keep int) (driver.Record, bool, error) {
	if f := s.append.Load(); f != nil {
		(*f)()
	}
	return s.Store.Append(ctx, name, r, keep)
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
	with     func(*Session, *CampaignOptions) // sets what candidate's options need a session for; may be nil
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
	if c.with != nil {
		c.with(s, &o)
	}
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

// NewSessionAt is NewSession on a clock of the test's own, for tests of packages that show what a
// session does.
var NewSessionAt = newSession
