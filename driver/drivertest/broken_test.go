package drivertest_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
)

// broken is a store that breaks one clause: in its leases, or as a whole.
type broken struct {
	name   string
	clause string
	lease  func(driver.Lease) driver.Lease
	store  func(*memstore.Store) driver.Store
}

// allBreaks returns every cheat.
func allBreaks() []broken {
	return slices.Concat(breaks, waitBreaks, sharedBreaks, portBreaks, journalBreaks)
}

var breaks = []broken{
	{name: "revives a lease", clause: "a lease that ended never comes back",
		lease: func(l driver.Lease) driver.Lease { return revives{l} }},
	{name: "does not renew", clause: "a lease that is renewed lives on with all its claims",
		lease: func(l driver.Lease) driver.Lease { return renewsNothing{l} }},
	{name: "forgets claim IDs", clause: "the same claim ID finds its place again",
		lease: func(l driver.Lease) driver.Lease { return &forgetsIDs{Lease: l} }},
	{name: "takes up the earlier place", clause: "a claim under a new ID never takes up an earlier place",
		lease: func(l driver.Lease) driver.Lease { return &takesOver{Lease: l, ids: map[string]string{}} }},
	{name: "leaves failed tries in the line", clause: "a try of a held name is told so and leaves nothing in the line",
		lease: func(l driver.Lease) driver.Lease { return triesStay{l} }},
	{name: "says held of what is gone", clause: "a wait never says held of a claim that went while it waited",
		lease: func(l driver.Lease) driver.Lease { return &saysHeld{says: saying(l), followed: map[string]bool{}} }},
	{name: "wakes everybody", clause: "a release wakes one waiter and not the others",
		lease: func(l driver.Lease) driver.Lease { return wakesAll{saying(l)} }},
	{name: "does not look at its context", clause: "a call that blocks returns as soon as its context ends",
		lease: func(l driver.Lease) driver.Lease { return ignoresContext{l} }},
	{name: "releases by name", clause: "a late release with an old token does not hurt the successor",
		lease: func(l driver.Lease) driver.Lease { return &byName{Lease: l, places: map[string]driver.Place{}} }},
	{name: "lets stragglers in", clause: "a claim ID that was released does not enter afterwards",
		lease: func(l driver.Lease) driver.Lease { return stragglers{l} }},
	{name: "lets in who begins meanwhile", clause: "a claim that begins while its ID is given up does not enter",
		lease: func(l driver.Lease) driver.Lease { return entersMeanwhile{l} }},
	{name: "lets stragglers push", clause: "a claim ID that was released does not push out the claim that stands now",
		lease: func(l driver.Lease) driver.Lease { return pushes{&byName{Lease: l, places: map[string]driver.Place{}}} }},
	{name: "leaves ghosts", clause: "what is repeated under one claim ID until it is final leaves nothing behind",
		lease: func(l driver.Lease) driver.Lease { return stragglers{l} }},
	{name: "calls what is gone an error", clause: "releasing what is gone is no error",
		lease: func(l driver.Lease) driver.Lease { return &strict{Lease: l, gone: map[string]bool{}} }},
	{name: "updates nothing", clause: "an update replaces the value that observers see",
		lease: func(l driver.Lease) driver.Lease { return updatesNothing{l} }},
	{name: "updates who holds and nobody else",
		clause: "an update of a place that waits is told to who follows the line, and moves nobody",
		lease:  func(l driver.Lease) driver.Lease { return updatesHolders{l} }},
	{name: "brings the old value back", clause: "the same claim ID entered again leaves an updated value alone",
		lease: func(l driver.Lease) driver.Lease { return bringsBack{l} }},
	{name: "tells no news", clause: "news tells a place that was removed by hand",
		lease: func(l driver.Lease) driver.Lease { return &noNews{l, isGone} }},
	{name: "tells what the owner did", clause: "news says nothing of what the owner did",
		lease: func(l driver.Lease) driver.Lease { return tellsOwn{saying(l)} }},
	{name: "closes nothing", clause: "closing a lease ends all its claims at once",
		lease: func(l driver.Lease) driver.Lease { return closesNothing{l} }},
	{name: "takes silence for an answer", clause: "every call obeys its context also when packets vanish, and its outcome is unknown",
		lease: func(l driver.Lease) driver.Lease { return silenceIsGone{l} }},
	{name: "gives short measure", clause: "a renewal starts the ttl afresh from the moment it was called",
		store: func(s *memstore.Store) driver.Store { return shortTTL{s} }},
	{name: "reads old lines", clause: "a line is never older than its call",
		store: func(s *memstore.Store) driver.Store { return &oldLines{Store: s, seen: map[string]driver.Line{}} }},
	{name: "spins", clause: "the next line is waited for while nothing changes",
		store: func(s *memstore.Store) driver.Store { return spins{s} }},
	{name: "misses updates", clause: "the next line is told when a claim enters, changes its value, or leaves",
		lease: func(l driver.Lease) driver.Lease { return updatesNothing{l} }},
	{name: "lets names collide", clause: "a name that begins with another name has a line of its own",
		store: func(s *memstore.Store) driver.Store { return collides{s} }},
	{name: "lists everything", clause: "names are listed by prefix and in order, without those in which nobody stands",
		store: func(s *memstore.Store) driver.Store { return listsAll{s} }},
	{name: "keeps its lists", clause: "a list that is read again has what has changed since",
		store: func(s *memstore.Store) driver.Store { return &oldLists{Store: s, seen: map[string]oldList{}} }},
	{name: "asks whoever holds", clause: "a request for a term that is over is told so",
		store: func(s *memstore.Store) driver.Store { return asksAnyone{s} }},
	{name: "starts tokens again", clause: "tokens of a name grow with every claim, also after the line was empty",
		lease: func(l driver.Lease) driver.Lease { return sameToken{l} }},
}

// brokenStore wraps each lease it grants.
type brokenStore struct {
	driver.Store
	lease func(driver.Lease) driver.Lease
}

func (s brokenStore) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := s.Store.Grant(ctx, owner, ttl)
	if err != nil || s.lease == nil {
		return l, err
	}
	return s.lease(l), nil
}

type revives struct{ driver.Lease }

func (l revives) Renew(ctx context.Context) error { _ = l.Lease.Renew(ctx); return nil }

type renewsNothing struct{ driver.Lease }

func (l renewsNothing) Renew(context.Context) error { return nil }

type forgetsIDs struct {
	driver.Lease
	mu sync.Mutex
	n  int
}

func (l *forgetsIDs) Claim(ctx context.Context, claims ...driver.Claim) ([]driver.Place, error) {
	l.mu.Lock()
	l.n++
	suffix := strings.Repeat("+", l.n)
	l.mu.Unlock()
	fresh := make([]driver.Claim, len(claims))
	for i, c := range claims {
		fresh[i] = c
		fresh[i].ID += suffix
	}
	places, err := l.Lease.Claim(ctx, fresh...)
	for i := range places {
		places[i].ID = claims[i].ID
	}
	return places, err
}

type takesOver struct {
	driver.Lease
	ids map[string]string // the first ID of each name
}

func (l *takesOver) Claim(ctx context.Context, claims ...driver.Claim) ([]driver.Place, error) {
	for i, c := range claims {
		if l.ids[c.Name] == "" {
			l.ids[c.Name] = c.ID
		}
		claims[i].ID = l.ids[c.Name]
	}
	return l.Lease.Claim(ctx, claims...)
}

type triesStay struct{ driver.Lease }

func (l triesStay) Claim(ctx context.Context, claims ...driver.Claim) ([]driver.Place, error) {
	try := claims[0].Try
	claims[0].Try = false
	places, err := l.Lease.Claim(ctx, claims...)
	if err == nil && try && !places[0].Held {
		return nil, driver.ErrTaken
	}
	return places, err
}

// says tells, beside the news of its lease, what is put into told.
type says struct {
	driver.Lease
	told chan driver.News
}

func saying(l driver.Lease) says { return says{l, make(chan driver.News, 100)} }

func (l says) News(ctx context.Context) ([]driver.News, error) {
	type answer struct {
		news []driver.News
		err  error
	}
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	ch := make(chan answer, 1)
	go func() {
		news, err := l.Lease.News(inner)
		ch <- answer{news, err}
	}()
	select {
	case a := <-ch:
		return a.news, a.err
	case n := <-l.told:
		cancel()
		return append((<-ch).news, n), nil
	}
}

// held tells of places that they are held.
func (l says) held(places ...driver.Place) {
	for _, p := range places {
		p.Held = true
		l.told <- driver.News{Place: p, Held: true}
	}
}

// saysHeld tells of places that were released while they were followed that they are held.
type saysHeld struct {
	says
	mu       sync.Mutex
	followed map[string]bool
}

func (l *saysHeld) Follow(places ...driver.Place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range places {
		l.followed[p.ID] = true
	}
	l.Lease.Follow(places...)
}

func (l *saysHeld) Release(ctx context.Context, places ...driver.Place) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range places {
		if l.followed[p.ID] {
			l.held(p)
		}
	}
	return l.Lease.Release(ctx, places...)
}

type wakesAll struct{ says }

func (l wakesAll) Follow(places ...driver.Place) {
	time.AfterFunc(time.Second, func() { l.held(places...) }) // by when a first release has come
}

type ignoresContext struct{ driver.Lease }

func (l ignoresContext) News(ctx context.Context) ([]driver.News, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return l.Lease.News(ctx)
}

type byName struct {
	driver.Lease
	mu     sync.Mutex
	places map[string]driver.Place // the last of each name
}

func (l *byName) Claim(ctx context.Context, claims ...driver.Claim) ([]driver.Place, error) {
	places, err := l.Lease.Claim(ctx, claims...)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range places {
		l.places[p.Name] = p
	}
	return places, err
}

func (l *byName) Release(ctx context.Context, places ...driver.Place) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range places {
		if err := l.Lease.Release(ctx, l.places[p.Name]); err != nil {
			return err
		}
	}
	return nil
}

type stragglers struct{ driver.Lease }

func (l stragglers) Claim(ctx context.Context, claims ...driver.Claim) ([]driver.Place, error) {
	places, err := l.Lease.Claim(ctx, claims...)
	if !errors.Is(err, driver.ErrGone) {
		return places, err
	}
	claims[0].ID += "again"
	return l.Lease.Claim(ctx, claims...)
}

// entersMeanwhile enters a claim as if its call had begun during the Release.
type entersMeanwhile struct{ driver.Lease }

func (l entersMeanwhile) Release(ctx context.Context, places ...driver.Place) error {
	err := l.Lease.Release(ctx, places...)
	for _, p := range places {
		_, _ = l.Lease.Claim(ctx, driver.Claim{Name: p.Name, ID: p.ID + "again"})
	}
	return err
}

type pushes struct{ *byName }

func (l pushes) Claim(ctx context.Context, claims ...driver.Claim) ([]driver.Place, error) {
	places, err := l.byName.Claim(ctx, claims...)
	if errors.Is(err, driver.ErrGone) {
		_ = l.byName.Release(ctx, driver.Place{Name: claims[0].Name}) // whatever stands there now
	}
	return places, err
}

func (l pushes) Release(ctx context.Context, places ...driver.Place) error {
	return l.Lease.Release(ctx, places...)
}

type strict struct {
	driver.Lease
	gone map[string]bool
}

func (l *strict) Release(ctx context.Context, places ...driver.Place) error {
	for _, p := range places {
		if l.gone[p.ID] {
			return driver.ErrGone
		}
		l.gone[p.ID] = true
	}
	return l.Lease.Release(ctx, places...)
}

type updatesNothing struct{ driver.Lease }

func (l updatesNothing) Update(context.Context, driver.Place, []byte) error { return nil }

type updatesHolders struct{ driver.Lease }

func (l updatesHolders) Update(ctx context.Context, p driver.Place, value []byte) error {
	if !p.Held {
		return nil
	}
	return l.Lease.Update(ctx, p, value)
}

type bringsBack struct{ driver.Lease }

func (l bringsBack) Claim(ctx context.Context, claims ...driver.Claim) ([]driver.Place, error) {
	places, err := l.Lease.Claim(ctx, claims...)
	for i, p := range places {
		_ = l.Lease.Update(ctx, p, claims[i].Value)
	}
	return places, err
}

// noNews tells nothing of some kind.
type noNews struct {
	driver.Lease
	kind func(driver.News) bool
}

func isGone(n driver.News) bool { return n.Gone }

func isHeld(n driver.News) bool { return n.Held }

func (l *noNews) News(ctx context.Context) ([]driver.News, error) {
	for {
		news, err := l.Lease.News(ctx)
		news = slices.DeleteFunc(news, l.kind)
		if len(news) > 0 || err != nil {
			return news, err
		}
	}
}

type tellsOwn struct{ says }

func (l tellsOwn) Release(ctx context.Context, places ...driver.Place) error {
	for _, p := range places {
		l.told <- driver.News{Place: p, Gone: true}
	}
	return l.Lease.Release(ctx, places...)
}

type closesNothing struct{ driver.Lease }

func (l closesNothing) Close(context.Context) error { return nil }

type silenceIsGone struct{ driver.Lease }

func (l silenceIsGone) Renew(ctx context.Context) error {
	if err := l.Lease.Renew(ctx); err != nil {
		return driver.ErrGone
	}
	return nil
}

type shortTTL struct{ *memstore.Store }

func (s shortTTL) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := s.Store.Grant(ctx, owner, ttl*9/10)
	return longer{l}, err
}

type longer struct{ driver.Lease }

func (l longer) TTL() time.Duration { return l.Lease.TTL() * 10 / 9 }

type oldLines struct {
	*memstore.Store
	mu   sync.Mutex
	seen map[string]driver.Line
}

func (s *oldLines) Line(ctx context.Context, name string) (driver.Line, error) {
	now, err := s.Store.Line(ctx, name)
	s.mu.Lock()
	defer s.mu.Unlock()
	old, ok := s.seen[name]
	s.seen[name] = now
	if ok {
		return old, err
	}
	return now, err
}

type spins struct{ *memstore.Store }

func (s spins) Next(ctx context.Context, name string, _ uint64) (driver.Line, error) {
	return s.Store.Next(ctx, name, 0)
}

type collides struct{ *memstore.Store }

func (s collides) Line(ctx context.Context, name string) (driver.Line, error) {
	base, _, _ := strings.Cut(name, "/")
	ln, err := s.Store.Line(ctx, base)
	ln.Name = name
	return ln, err
}

type listsAll struct{ *memstore.Store }

func (s listsAll) Lines(ctx context.Context, _ string) ([]driver.Line, error) {
	return s.Store.Lines(ctx, "")
}

// oldLists has a list that was read before for the present one where it is no shorter.
type oldLists struct {
	*memstore.Store
	mu   sync.Mutex
	seen map[string]oldList
}

type oldList []driver.Line

func (s *oldLists) Lines(ctx context.Context, prefix string) ([]driver.Line, error) {
	now, err := s.Store.Lines(ctx, prefix)
	s.mu.Lock()
	defer s.mu.Unlock()
	if was, ok := s.seen[prefix]; ok && len(was) == len(now) {
		return was, err
	}
	s.seen[prefix] = now
	return now, err
}

type asksAnyone struct{ *memstore.Store }

func (s asksAnyone) Ask(ctx context.Context, name string, r driver.Request) error {
	ln, err := s.Line(ctx, name)
	if err != nil || ln.Holder == nil {
		return driver.ErrGone
	}
	r.Token = ln.Holder.Token
	return s.Store.Ask(ctx, name, r)
}

type sameToken struct{ driver.Lease }

func (l sameToken) Claim(ctx context.Context, claims ...driver.Claim) ([]driver.Place, error) {
	places, err := l.Lease.Claim(ctx, claims...)
	for i := range places {
		places[i].Token = 1
	}
	return places, err
}
