package drivertest_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
)

// waitBreaks break what leases, waits and lines promise: that a lease ends, that who waits hears of
// it, and that nobody leads before.
var waitBreaks = slices.Concat([]broken{
	{name: "lets everybody lead", clause: "one leads at a time while the losers come again and again",
		lease: func(l driver.Lease) driver.Lease { return allLead{l} }},
	{name: "says held of who waits", clause: "the first claim holds and the next waits behind it",
		lease: func(l driver.Lease) driver.Lease { return allLead{l} }},
	{name: "lets every try win", clause: "of many tries at once one holds",
		lease: func(l driver.Lease) driver.Lease { return triesWin{l} }},
	{name: "lets no try win", clause: "a try holds a free name at once",
		lease: func(l driver.Lease) driver.Lease { return claimsFail{l, driver.ErrTaken} }},
	{name: "takes a place again for another", clause: "the same try finds its place again",
		lease: func(l driver.Lease) driver.Lease { return &forgetsIDs{Lease: l} }},
	{name: "enters a claim as often as it is asked",
		clause: "the same claim ID entered many times at once is one place",
		lease:  func(l driver.Lease) driver.Lease { return &forgetsIDs{Lease: l} }},
	{name: "keeps the place for a new ID", clause: "a claim under a new ID goes behind those who wait",
		lease: func(l driver.Lease) driver.Lease { return &takesOver{Lease: l, ids: map[string]string{}} }},
	{name: "mixes places up", clause: "several claims come back as places in the same order",
		lease: func(l driver.Lease) driver.Lease { return backToFront{l} }},
	{name: "enters batches one by one", clause: "a batch with a try that fails enters nothing",
		lease: func(l driver.Lease) driver.Lease { return oneByOne{l} }},
	{name: "turns the line round", clause: "the oldest claim leads",
		store: func(s *memstore.Store) driver.Store { return turnsRound{s} }},
	{name: "gives the token with the turn", clause: "the token is final already while the claim waits",
		lease: func(l driver.Lease) driver.Lease { return lateToken{l} }},
	{name: "tells only who waited", clause: "a wait for a place that is held returns at once",
		lease: func(l driver.Lease) driver.Lease { return onlyComing{l} }},
	{name: "tells of a place that was released", clause: "a wait whose place was released is told nothing",
		lease: func(l driver.Lease) driver.Lease { return tellsOwn{saying(l)} }},
	{name: "takes a claim out with its wait", clause: "a wait that was given up leaves its claim in the line",
		lease: func(l driver.Lease) driver.Lease { return &leavesLine{Lease: l} }},
	{name: "takes silence after a claim for an answer",
		clause: "a claim whose answer was cut off finds its place again",
		lease:  func(l driver.Lease) driver.Lease { return claimsFail{l, driver.ErrGone} }},
	{name: "takes silence after a release for an answer", clause: "a release whose answer was cut off can be repeated",
		lease: func(l driver.Lease) driver.Lease { return releasesNothing{l} }},
	{name: "waits for a minute", clause: "a call whose context has ended returns at once",
		lease: func(l driver.Lease) driver.Lease { return ignoresContext{l} }},
	{name: "loses calls that come together", clause: "a lease is served by many goroutines at once",
		lease: func(l driver.Lease) driver.Lease { return updatesNothing{l} }},
	{name: "releases nothing", clause: "a release frees the name at once",
		lease: func(l driver.Lease) driver.Lease { return releasesNothing{l} }},
	{name: "releases the first", clause: "several places are released together",
		lease: func(l driver.Lease) driver.Lease { return releasesFirstOf{l} }},
	{name: "releases under any token", clause: "a release under another token leaves the claim alone",
		lease: func(l driver.Lease) driver.Lease { return releasing(l, func(p *driver.Place) { p.Token = 0 }) }},
	{name: "releases by token only", clause: "a place without a token is released by its claim ID",
		lease: func(l driver.Lease) driver.Lease {
			return releasing(l, func(p *driver.Place) { p.Token = max(p.Token, 1) })
		}},
	{name: "releases whatever stands", clause: "a release by claim ID leaves a claim under another ID alone",
		lease: func(l driver.Lease) driver.Lease { return &byName{Lease: l, places: map[string]driver.Place{}} }},
	{name: "lets in who was on the way",
		clause: "a claim that was given up on its way and released does not enter later",
		lease:  func(l driver.Lease) driver.Lease { return entersMeanwhile{l} }},
	{name: "updates what is gone", clause: "an update of a place that is gone is told so",
		lease: func(l driver.Lease) driver.Lease { return updatesNothing{l} }},
	{name: "asks nobody", clause: "a request reaches the holder",
		store: func(s *memstore.Store) driver.Store { return asksNobody{s} }},
	{name: "waits for what comes", clause: "the next line is told at once where it differs already",
		store: func(s *memstore.Store) driver.Store { return onlyNews{s} }},
	{name: "waits from the beginning", clause: "revision 0 is older than every line, also one never used",
		store: func(s *memstore.Store) driver.Store { return onlyNews{s} }},
	{name: "tells of every line", clause: "a change of one line does not wake those who follow another",
		store: func(s *memstore.Store) driver.Store { return spins{s} }},
	{name: "has an old line for who asks late", clause: "who asks late finds the present state",
		store: func(s *memstore.Store) driver.Store { return &firstNext{Store: s, seen: map[string]driver.Line{}} }},
	{name: "grants less", clause: "a ttl the store cannot keep is rounded up",
		lease: func(l driver.Lease) driver.Lease { return wholeSeconds{l} }},
	{name: "calls it an error to close twice", clause: "closing a lease that is gone is no error",
		lease: func(l driver.Lease) driver.Lease { return closesOnce{l} }},
	{name: "ends leases with their client", clause: "leases stay when the client that made them is closed",
		store: func(s *memstore.Store) driver.Store { return &endsLeases{Store: s} }},
	{name: "says something else each time", clause: "the store says what it can do, and always the same",
		store: func(s *memstore.Store) driver.Store { return &otherCaps{Store: s} }},
	{name: "has somebody stand everywhere", clause: "a name never used has an empty line",
		store: func(s *memstore.Store) driver.Store { return neverEmpty{s} }},
	{name: "tells lines of before", clause: "lines never go back while they are followed",
		store: func(s *memstore.Store) driver.Store { return &goesBack{Store: s} }},
	{name: "asks whoever comes next too", clause: "a request does not outlive its term",
		store: func(s *memstore.Store) driver.Store { return asksNext{s} }},
	{name: "says nothing of who was passed over",
		clause: "a followed place that is passed over in a transfer is told gone and not held",
		lease:  func(l driver.Lease) driver.Lease { return &hands{&noNews{l, isGone}, handsOver(l)} }},
	{name: "exchanges what is gone under another ID",
		clause: "an exchange of a place that is gone leaves one claim at most",
		lease:  func(l driver.Lease) driver.Lease { return &exchanges{l, otherID} }},
	{name: "has one ID for all leases",
		clause: "leases have IDs of their own, which observers see beside their owner and value",
		lease:  func(l driver.Lease) driver.Lease { return sameLease{l} }},
	{name: "begins tokens again", clause: "tokens go on growing after the store was restarted",
		store: func(s *memstore.Store) driver.Store {
			return restarts{s, func(l driver.Lease) driver.Lease { return sameToken{l} }, nil}
		}},
	{name: "forgets who waits", clause: "a wait that began before the store was restarted still comes to hold",
		store: func(s *memstore.Store) driver.Store {
			return restarts{s, nil, func(l driver.Lease) driver.Lease { return &noNews{l, isHeld} }}
		}},
},
	each("never ends a lease", nil, func(s *memstore.Store) driver.Store { return deathless{s} },
		"a lease that is not renewed ends with all its claims",
		"a wait comes to hold when the holder's lease ends",
		"a waiter whose lease ended is passed over",
		"a wait ends when its own lease ends",
		"a writer holds when the lease of the last reader ends",
		"the next line is told when a lease ends",
		"releasing what is gone with its lease is no error"),
	each("says nothing of what was removed", func(l driver.Lease) driver.Lease { return &noNews{l, isGone} }, nil,
		"a wait ends as soon as its place was removed by hand",
		"a wait comes to hold when the holder was removed by hand",
		"a place that was removed by hand can be claimed again under a new ID",
		"news tells what happened before it was asked",
		"news tells a place that was removed while the client was cut off"),
	each("says nothing of what is held", func(l driver.Lease) driver.Lease { return &noNews{l, isHeld} }, nil,
		"a wait that was cut off during the release still comes to hold",
		"a place that is followed while its client is cut off is told afterwards",
		"readers that are followed are told together"),
	each("says nothing of its own end", func(l driver.Lease) driver.Lease { return deafToItsEnd{l} }, nil,
		"a wait ends as soon as its lease was closed",
		"news says gone once the lease is known to be gone",
		"news says gone when the lease is closed"),
)

// each is one store that breaks several clauses.
func each(name string, lease func(driver.Lease) driver.Lease, store func(*memstore.Store) driver.Store,
	clauses ...string) (all []broken) {
	for _, clause := range clauses {
		all = append(all, broken{name: name + " (" + clause + ")", clause: clause, lease: lease, store: store})
	}
	return all
}

// allLead says of every place that it is held, and takes a while for an update, as a worker for its
// work.
type allLead struct{ driver.Lease }

func (l allLead) Claim(ctx context.Context, claims ...driver.Claim) ([]driver.Place, error) {
	places, err := l.Lease.Claim(ctx, claims...)
	for i := range places {
		places[i].Held = true
	}
	return places, err
}

func (l allLead) Follow(places ...driver.Place) {}

func (l allLead) Update(ctx context.Context, p driver.Place, value []byte) error {
	time.Sleep(time.Millisecond)
	return l.Lease.Update(ctx, p, value)
}

type triesWin struct{ driver.Lease }

func (l triesWin) Claim(ctx context.Context, claims ...driver.Claim) ([]driver.Place, error) {
	places, err := l.Lease.Claim(ctx, claims...)
	if errors.Is(err, driver.ErrTaken) {
		return []driver.Place{{Name: claims[0].Name, ID: claims[0].ID, Held: true}}, nil
	}
	return places, err
}

// claimsFail has a final answer for a claim that got none, and for a try.
type claimsFail struct {
	driver.Lease
	err error
}

func (l claimsFail) Claim(ctx context.Context, claims ...driver.Claim) ([]driver.Place, error) {
	places, err := l.Lease.Claim(ctx, claims...)
	if err != nil || len(claims) > 0 && claims[0].Try {
		return nil, l.err
	}
	return places, err
}

type backToFront struct{ driver.Lease }

func (l backToFront) Claim(ctx context.Context, claims ...driver.Claim) ([]driver.Place, error) {
	places, err := l.Lease.Claim(ctx, claims...)
	slices.Reverse(places)
	return places, err
}

type oneByOne struct{ driver.Lease }

func (l oneByOne) Claim(ctx context.Context, claims ...driver.Claim) (all []driver.Place, err error) {
	for _, c := range claims {
		places, err := l.Lease.Claim(ctx, c)
		if err != nil {
			return nil, err
		}
		all = append(all, places...)
	}
	return all, nil
}

type turnsRound struct{ *memstore.Store }

func (s turnsRound) Line(ctx context.Context, name string) (driver.Line, error) {
	ln, err := s.Store.Line(ctx, name)
	if n := len(ln.Waiters); n > 0 {
		*ln.Holder, ln.Waiters[n-1] = ln.Waiters[n-1], *ln.Holder
	}
	return ln, err
}

type lateToken struct{ driver.Lease }

func (l lateToken) News(ctx context.Context) ([]driver.News, error) {
	news, err := l.Lease.News(ctx)
	for i := range news {
		if news[i].Held {
			news[i].Place.Token++
		}
	}
	return news, err
}

// leavesLine releases what it follows when nobody reads its news any more.
type leavesLine struct {
	driver.Lease
	mu       sync.Mutex
	followed []driver.Place
}

func (l *leavesLine) Follow(places ...driver.Place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.followed = append(l.followed, places...)
	l.Lease.Follow(places...)
}

func (l *leavesLine) News(ctx context.Context) ([]driver.News, error) {
	news, err := l.Lease.News(ctx)
	if ctx.Err() != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		_ = l.Lease.Release(context.WithoutCancel(ctx), l.followed...)
	}
	return news, err
}

type releasesNothing struct{ driver.Lease }

func (l releasesNothing) Release(context.Context, ...driver.Place) error { return nil }

type releasesFirstOf struct{ driver.Lease }

func (l releasesFirstOf) Release(ctx context.Context, places ...driver.Place) error {
	return l.Lease.Release(ctx, places[:min(len(places), 1)]...)
}

type asksNobody struct{ *memstore.Store }

func (s asksNobody) Ask(context.Context, string, driver.Request) error { return nil }

// onlyNews tells of the changes that come after the call.
type onlyNews struct{ *memstore.Store }

func (s onlyNews) Next(ctx context.Context, name string, _ uint64) (driver.Line, error) {
	now, err := s.Line(ctx, name)
	if err != nil {
		return now, err
	}
	return s.Store.Next(ctx, name, now.Revision)
}

// firstNext looks at a line when somebody reads it, and at the first change after that once more.
type firstNext struct {
	*memstore.Store
	mu   sync.Mutex
	seen map[string]driver.Line
}

func (s *firstNext) Line(ctx context.Context, name string) (driver.Line, error) {
	ln, err := s.Store.Line(ctx, name)
	go func() {
		next, err := s.Store.Next(ctx, name, ln.Revision)
		s.mu.Lock()
		defer s.mu.Unlock()
		if _, ok := s.seen[name]; !ok && err == nil {
			s.seen[name] = next
		}
	}()
	time.Sleep(time.Millisecond) // until it waits
	return ln, err
}

func (s *firstNext) Next(ctx context.Context, name string, after uint64) (driver.Line, error) {
	time.Sleep(time.Millisecond)
	s.mu.Lock()
	old, ok := s.seen[name]
	s.mu.Unlock()
	if ok && old.Revision > after {
		old.Holder.Token = 1
		return old, nil
	}
	return s.Store.Next(ctx, name, after)
}

type wholeSeconds struct{ driver.Lease }

func (l wholeSeconds) TTL() time.Duration { return l.Lease.TTL().Truncate(time.Second) }

type sameLease struct{ driver.Lease }

func (l sameLease) ID() string { return "lease" }

// restarted tells broken stores of a restart, which an unbroken one in memory survives.
var restarted atomic.Pointer[memstore.Store]

// restarts breaks leases that are granted after a restart, or that live through it.
type restarts struct {
	*memstore.Store
	after, through func(driver.Lease) driver.Lease
}

func (s restarts) Caps() driver.Caps {
	c := s.Store.Caps()
	c.Token = driver.TokenDurable
	return c
}

func (s restarts) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := s.Store.Grant(ctx, owner, ttl)
	switch was := restarted.Load() == s.Store; {
	case err == nil && was && s.after != nil:
		l = s.after(l)
	case err == nil && !was && s.through != nil:
		l = s.through(l)
	}
	return l, err
}

// deathless grants leases that live for hours, whatever they say.
type deathless struct{ *memstore.Store }

func (s deathless) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := s.Store.Grant(ctx, owner, 100*ttl)
	return saysTTL{l, ttl}, err
}

type saysTTL struct {
	driver.Lease
	ttl time.Duration
}

func (l saysTTL) TTL() time.Duration { return l.ttl }

// deafToItsEnd never says that it is gone.
type deafToItsEnd struct{ driver.Lease }

func (l deafToItsEnd) News(ctx context.Context) ([]driver.News, error) {
	news, err := l.Lease.News(ctx)
	if errors.Is(err, driver.ErrGone) {
		<-ctx.Done()
		err = ctx.Err()
	}
	return news, err
}

type closesOnce struct{ driver.Lease }

func (l closesOnce) Close(ctx context.Context) error {
	if err := l.Lease.Renew(ctx); err != nil {
		return err
	}
	return l.Lease.Close(ctx)
}

type endsLeases struct {
	*memstore.Store
	mu     sync.Mutex
	leases []driver.Lease
}

func (s *endsLeases) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := s.Store.Grant(ctx, owner, ttl)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leases = append(s.leases, l)
	return l, err
}

func (s *endsLeases) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.leases {
		_ = l.Close(context.Background())
	}
	return s.Store.Close()
}

type otherCaps struct {
	*memstore.Store
	asked atomic.Int64
}

func (s *otherCaps) Caps() driver.Caps {
	c := s.Store.Caps()
	c.MaxTTL += time.Duration(s.asked.Add(1))
	return c
}

type neverEmpty struct{ *memstore.Store }

func (s neverEmpty) Line(ctx context.Context, name string) (driver.Line, error) {
	ln, err := s.Store.Line(ctx, name)
	if ln.Holder == nil {
		ln.Holder = &driver.Entry{}
	}
	return ln, err
}

// goesBack tells each other line with the holder that it told first.
type goesBack struct {
	*memstore.Store
	mu    sync.Mutex
	told  int
	first *driver.Entry
}

func (s *goesBack) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := s.Store.Grant(ctx, owner, ttl)
	return slowClaims{l}, err
}

// slowClaims lets who follows a line see each of its states.
type slowClaims struct{ driver.Lease }

func (l slowClaims) Claim(ctx context.Context, claims ...driver.Claim) ([]driver.Place, error) {
	select {
	case <-time.After(time.Millisecond):
	case <-ctx.Done():
	}
	return l.Lease.Claim(ctx, claims...)
}

func (s *goesBack) Next(ctx context.Context, name string, after uint64) (driver.Line, error) {
	ln, err := s.Store.Next(ctx, name, after)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.first == nil {
		s.first = ln.Holder
	}
	if s.told++; s.told%2 == 0 && s.first != nil && string(ln.Holder.Value) != "end" {
		ln.Holder = s.first
	}
	return ln, err
}

// asked are the last requests, by the store.
var asked sync.Map

// asksNext tells a request to who enters after it, too.
type asksNext struct{ *memstore.Store }

func (s asksNext) Ask(ctx context.Context, name string, r driver.Request) error {
	asked.Store(s.Store, r)
	return s.Store.Ask(ctx, name, r)
}

func (s asksNext) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := s.Store.Grant(ctx, owner, ttl)
	return hearsOld{saying(l), s.Store}, err
}

type hearsOld struct {
	says
	s *memstore.Store
}

func (l hearsOld) Claim(ctx context.Context, claims ...driver.Claim) ([]driver.Place, error) {
	places, err := l.Lease.Claim(ctx, claims...)
	if r, ok := asked.Load(l.s); ok && err == nil {
		r := r.(driver.Request)
		l.told <- driver.News{Place: places[0], Request: &r}
	}
	return places, err
}
