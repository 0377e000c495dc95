package primacy

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
)

// front is the server that holds the store. It can be down or change its leader, which extends all
// leases, and it keeps a record of what was done, from which it is judged: first come, first
// served; whoever is told that he holds does; a waiter is left asleep until his own claim moves.
type front struct {
	*memstore.Store
	judge  *judge
	rate   float64 // of its clock
	stingy bool    // against the port it grants some leases for less than was asked for; they are to be refused

	mu       sync.Mutex // held during each call that does not block, so that the record has the store's own order
	down     bool
	whole    bool            // no faults any more
	life     context.Context // of the streams
	end      context.CancelFunc
	grants   int
	leases   map[*frontLease]struct{}
	entered  map[claimKey]int // as how manieth claim
	notified map[claimKey]bool
	removed  map[claimKey]bool // by an operator
}

// claimKey is a place in a line as everybody sees it.
type claimKey struct {
	name  string
	token uint64
}

var errDown = errors.New("the store is down")

func newFront(j *judge, rate float64, minTTL time.Duration) *front {
	f := &front{Store: memstore.New(memstore.Options{Rate: rate, MinTTL: minTTL}), judge: j, rate: rate,
		leases:  map[*frontLease]struct{}{},
		entered: map[claimKey]int{}, notified: map[claimKey]bool{}, removed: map[claimKey]bool{}}
	f.life, f.end = context.WithCancel(context.Background())
	return f
}

// Caps hides that the server rounds a ttl up: the answer of Grant tells.
func (f *front) Caps() driver.Caps {
	c := f.Store.Caps()
	c.MinTTL = time.Millisecond
	return c
}

// frontLease is a lease as the server knows it.
type frontLease struct {
	driver.Lease
	f       *front
	owner   string
	renewed time.Time
	aged    time.Duration // by how much its machine has slept since
	count   int           // renewals
}

// at makes a call that does not block.
func at[T any](f *front, call func() (T, error)) (T, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		var none T
		return none, errDown
	}
	return call()
}

// stream makes a call that blocks. It breaks when the server's leader changes.
func stream[T any](ctx context.Context, f *front, call func(context.Context) (T, error)) (T, error) {
	var none T
	f.mu.Lock()
	down, life := f.down, f.life
	f.mu.Unlock()
	if down {
		return none, errDown
	}
	ctx2, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(life, cancel)()
	got, err := call(ctx2)
	if err != nil && ctx.Err() == nil && ctx2.Err() != nil {
		return none, errDown
	}
	return got, err
}

func (f *front) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	return at(f, func() (driver.Lease, error) {
		if f.grants++; f.stingy && !f.whole && f.grants%2 == 0 {
			ttl = ttl * 6 / 10
		}
		l, err := f.Store.Grant(ctx, owner, ttl)
		if err != nil {
			return nil, err
		}
		fl := &frontLease{Lease: l, f: f, owner: owner, renewed: time.Now()}
		f.leases[fl] = struct{}{}
		return fl, nil
	})
}

func (f *front) Line(ctx context.Context, name string) (driver.Line, error) {
	return at(f, func() (driver.Line, error) { return f.Store.Line(ctx, name) })
}

func (f *front) Next(ctx context.Context, name string, after uint64) (driver.Line, error) {
	return stream(ctx, f, func(ctx context.Context) (driver.Line, error) { return f.Store.Next(ctx, name, after) })
}

func (f *front) Ask(ctx context.Context, name string, r driver.Request) error {
	_, err := at(f, func() (none, error) { return none{}, f.Store.Ask(ctx, name, r) })
	return err
}

func (l *frontLease) do(call func() error) error {
	_, err := at(l.f, func() (none, error) { return none{}, call() })
	return err
}

func (l *frontLease) Renew(ctx context.Context) error {
	return l.do(func() error { return l.renew(ctx) })
}

func (l *frontLease) renew(ctx context.Context) error {
	err := l.Lease.Renew(ctx)
	if err == nil {
		l.renewed, l.aged = time.Now(), 0
		l.count++
	}
	return err
}

func (l *frontLease) Claim(ctx context.Context, claims ...driver.Claim) ([]driver.Place, error) {
	return at(l.f, func() ([]driver.Place, error) {
		places, err := l.Lease.Claim(ctx, claims...)
		for _, p := range places {
			l.f.enters(l.owner, p)
		}
		return places, err
	})
}

func (l *frontLease) Update(ctx context.Context, p driver.Place, value []byte) error {
	return l.do(func() error { return l.Lease.Update(ctx, p, value) })
}

func (l *frontLease) Release(ctx context.Context, p ...driver.Place) error {
	return l.do(func() error { return l.Lease.Release(ctx, p...) })
}

func (l *frontLease) Exchange(ctx context.Context, p driver.Place, c driver.Claim) (driver.Place, error) {
	return at(l.f, func() (driver.Place, error) {
		got, err := l.Lease.(driver.Exchanger).Exchange(ctx, p, c)
		if err == nil {
			l.f.enters(l.owner, got)
			l.f.judge.count("claims exchanged")
		}
		return got, err
	})
}

// Transfer notes whose claims it removed: nobody may be told that they hold.
func (l *frontLease) Transfer(ctx context.Context, p driver.Place, successor uint64) error {
	return l.do(func() error {
		before := l.f.standing(p.Name)
		err := l.Lease.(driver.Transferer).Transfer(ctx, p, successor)
		after := l.f.standing(p.Name)
		if err == nil && (len(after) == 0 || after[0].Token != successor) {
			l.f.judge.failf("%s was handed to token %d, and now it is led by %+v", p.Name, successor, after)
		}
		for _, s := range before {
			if !slices.ContainsFunc(after, func(a driver.Entry) bool { return a.Token == s.Token }) {
				l.f.removed[claimKey{p.Name, s.Token}] = true
			}
		}
		return err
	})
}

func (l *frontLease) News(ctx context.Context) ([]driver.News, error) {
	news, err := stream(ctx, l.f, l.Lease.News)
	l.judgeNews(news)
	return news, err
}

func (l *frontLease) Close(ctx context.Context) error {
	return l.do(func() error { return l.Lease.Close(ctx) })
}

// enters notes a place that was entered.
func (f *front) enters(owner string, p driver.Place) {
	if s := (claimKey{p.Name, p.Token}); f.entered[s] == 0 {
		f.entered[s] = len(f.entered) + 1
	}
	if p.Held {
		f.holds(owner, p)
	}
}

// holds judges the answer that a place is held.
func (f *front) holds(owner string, p driver.Place) {
	s := claimKey{p.Name, p.Token}
	f.notified[s] = true
	if f.removed[s] {
		f.judge.failf("the store told %s that it holds %s under token %d, which was removed before", owner, p.Name,
			p.Token)
	}
	for _, other := range f.standing(p.Name) {
		if !other.Held && other.Token == p.Token {
			f.judge.failf("the store told %s that it holds %s under token %d, though it does not", owner, p.Name,
				p.Token)
		}
	}
}

// standing returns the line, the holder first.
func (f *front) standing(name string) []driver.Entry {
	line, _ := f.Store.Line(context.Background(), name)
	if line.Holder == nil {
		return nil
	}
	return append([]driver.Entry{*line.Holder}, line.Waiters...)
}

// inOrder wants each line in the order in which its claims entered.
func (f *front) inOrder(names []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range names {
		last := 0
		for _, s := range f.standing(name) {
			if n := f.entered[claimKey{name, s.Token}]; n <= last {
				f.judge.failf("the line of %s is out of order: token %d entered as number %d, before it number %d",
					name, s.Token, n, last)
			} else {
				last = n
			}
		}
	}
}

// restart breaks all streams and extends all leases, as a new leader of a store does. For the time
// of down nothing is answered.
func (f *front) restart(down time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.end()
	f.life, f.end = context.WithCancel(context.Background())
	f.extend()
	if down > 0 && !f.down { // shorter than a lease: none runs out meanwhile
		f.down = true
		time.AfterFunc(down, func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.down = false
			f.extend()
		})
	}
}

func (f *front) settle() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.whole = true
}

func (f *front) extend() {
	for l := range f.leases {
		if l.renew(context.Background()) != nil {
			delete(f.leases, l)
		}
	}
}

// age lets the leases of a machine that has slept run out so much earlier: the store's clock went
// on while nothing of the machine's did.
func (f *front) age(owner string, slept time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for l := range f.leases {
		if l.owner != owner {
			continue
		}
		l.aged += slept
		count := l.count
		left := time.Duration(float64(l.TTL())/f.rate) - time.Since(l.renewed) - l.aged
		time.AfterFunc(max(0, left), func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			if l.count == count {
				_ = l.Lease.Close(context.Background())
			}
		})
	}
}

// remove removes a claim as an operator would. It says whether the store had told anybody that it
// holds.
func (f *front) remove(name string, token uint64) (notified bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := claimKey{name, token}
	f.removed[s] = f.Store.Remove(name, token)
	return f.notified[s]
}

// endLease ends the lease that holds name long before its time, and with it all its claims. It
// returns those that were told to hold.
func (f *front) endLease(name string) (owner string, notified []claimKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := f.standing(name)
	if len(all) == 0 {
		return "", nil
	}
	lines, _ := f.Store.Lines(context.Background(), "")
	for _, line := range lines {
		for _, st := range f.standing(line.Name) {
			if s := (claimKey{line.Name, st.Token}); st.Lease == all[0].Lease {
				f.removed[s] = true
				if f.notified[s] {
					notified = append(notified, s)
				}
			}
		}
	}
	f.Store.Expire(name)
	return all[0].Owner, slices.Clip(notified)
}

// judgeNews judges news that a place is held.
func (l *frontLease) judgeNews(news []driver.News) {
	l.f.mu.Lock()
	defer l.f.mu.Unlock()
	for _, n := range news {
		if n.Held {
			l.f.holds(l.owner, n.Place)
		}
	}
}
