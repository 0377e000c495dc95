package redlockstore

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// views are the lines as this client saw them last. The servers keep no revisions, so that a
// revision is this client's: it counts the changes that it saw, beginning with the time, so that
// those of two processes compare more or less.
type views struct {
	mu   sync.Mutex
	last uint64
	all  map[string]*view
}

// view is a line as it was seen last.
type view struct {
	line driver.Line
	read time.Duration // by the boot clock, before the read that showed it began
}

// maxViews is how many lines are remembered. One that was forgotten gets a new revision, and is
// told once more.
const maxViews = 10_000

// reading is what a majority, or what is left of it, says of a name.
type reading struct {
	holder *driver.Entry
	left   time.Duration // until the keys expire; 0: not known
}

// Line asks all servers who holds the name: one value on a majority of them. It is not
// linearizable: the servers are read one beside the other.
func (s *Store) Line(ctx context.Context, name string) (driver.Line, error) {
	ln, _, err := s.line(ctx, name)
	return ln, err
}

func (s *Store) line(ctx context.Context, name string) (driver.Line, time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return driver.Line{}, 0, err
	}
	began := boottime.Now()
	got, err := s.read(ctx, name)
	if err != nil {
		return driver.Line{}, 0, fmt.Errorf("line of %s: %w", name, err)
	}
	return s.views.see(name, began, got[0].holder), got[0].left, nil
}

// see keeps what was read, unless a later read has shown more already.
func (v *views) see(name string, began time.Duration, holder *driver.Entry) driver.Line {
	v.mu.Lock()
	defer v.mu.Unlock()
	old := v.all[name]
	if old == nil && len(v.all) >= maxViews {
		clear(v.all)
	}
	switch {
	case old == nil || !same(old.line.Holder, holder) && began >= old.read:
		v.last = max(v.last+1, uint64(time.Now().UnixMicro()))
		old = &view{line: driver.Line{Name: name, Revision: v.last, Holder: holder}, read: began}
		v.all[name] = old
	case began > old.read:
		old.read = began
	}
	out := old.line
	if out.Holder != nil {
		st := *out.Holder
		st.Value = bytes.Clone(st.Value)
		out.Holder = &st
	}
	return out
}

func same(a, b *driver.Entry) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Owner == b.Owner && a.Lease == b.Lease && a.Note == b.Note && bytes.Equal(a.Value, b.Value)
}

// poll is how long who waits lets pass between two looks when no hint comes, at most; pollPlain
// where releases are not told.
const (
	poll      = time.Second
	pollPlain = 150 * time.Millisecond
)

// Next looks again and again: when a change is told, when the keys expire, and now and then.
func (s *Store) Next(ctx context.Context, name string, after uint64) (driver.Line, error) {
	h := s.hint(name)
	defer h.close()
	for {
		ln, left, err := s.line(ctx, name)
		if err != nil {
			return driver.Line{}, err
		}
		if ln.Revision > after {
			return ln, nil
		}
		pause := s.pollAfter()
		if left > 0 {
			pause = min(pause, left+time.Millisecond)
		}
		_ = storeutil.WaitFor(ctx, pause, h.changed) // the next look says how ctx ended
	}
}

// read asks all servers about these names.
func (s *Store) read(ctx context.Context, names ...string) (got []reading, err error) {
	err = s.again(ctx, func() (err error) {
		got, err = s.readOnce(ctx, names)
		return err
	})
	return got, err
}

func (s *Store) readOnce(ctx context.Context, names []string) ([]reading, error) {
	keys := make([]string, len(names))
	for i, name := range names {
		keys[i] = s.key(name)
	}
	n, all := newCount(s, 0), make([]sighting, len(names))
	answers := askAll(s, func(v *server) ([]any, error) { return v.call(look, maxLimit/2, keys) })
	err := gather(ctx, s, answers, func(a values) bool {
		n.add(a, 0)
		for i := range all {
			all[i].add(a, i)
		}
		return !slices.ContainsFunc(all, func(g sighting) bool { return !g.decided(s) })
	})
	if err != nil {
		return nil, n.error(err)
	}
	got := make([]reading, len(names))
	for i := range all {
		if all[i].answered < s.quorum {
			return nil, n.error(nil)
		}
		got[i] = all[i].reading(s)
	}
	return got, nil
}

// sighting is what was seen of one name.
type sighting struct {
	answered int
	values   []string                   // on the servers where there is one
	left     map[string][]time.Duration // by the value's beginning
}

func (g *sighting) add(a values, i int) {
	if a.err != nil || len(a.got) < 2*i+2 {
		return
	}
	g.answered++
	text, _ := a.got[2*i].(string)
	ms, _ := a.got[2*i+1].(int64)
	if text == "" {
		return
	}
	g.values = append(g.values, text)
	if g.left == nil {
		g.left = map[string][]time.Duration{}
	}
	g.left[whose(text)] = append(g.left[whose(text)], time.Duration(ms)*time.Millisecond)
}

// whose is what is one on all servers where a claim stands: ours may be updated on some and not on
// others.
func whose(text string) string {
	if own, _, _, ok := parse(text[1:]); ok {
		return "=" + own
	}
	return text
}

// most returns the value that stands on most servers, and on how many.
func (g *sighting) most() (who string, n int) {
	for w, left := range g.left {
		if len(left) > n || len(left) == n && w < who {
			who, n = w, len(left)
		}
	}
	return who, n
}

func (g *sighting) decided(s *Store) bool {
	_, n := g.most()
	return n >= s.quorum || n+len(s.servers)-g.answered < s.quorum
}

// reading says who holds, or may: with those that did not answer he has a majority.
func (g *sighting) reading(s *Store) reading {
	who, n := g.most()
	silent := len(s.servers) - g.answered
	if n+silent < s.quorum || n == 0 {
		return reading{}
	}
	left := slices.Max(g.left[who])
	st := &driver.Entry{Held: true}
	var stamp string
	for _, v := range g.values {
		if whose(v) != who {
			continue
		}
		if _, at, in, ok := parse(v[1:]); ok && v[0] == '=' && at >= stamp {
			stamp = at
			st.Owner, st.Lease, st.Value = in.Owner, in.Lease, in.Value
		}
	}
	switch {
	case who[0] == '!':
		st.Note = fmt.Sprintf("the key is a %s and no lock: it is in the way until somebody deletes it", who[1:])
	case stamp == "" && left < 0:
		st.Note = "held through another library, without an expiry: it never ends by itself"
	case stamp == "":
		st.Note = "held through another library (redsync, redislock or alike)"
	case n < s.quorum:
		st.Note = fmt.Sprintf("seen on %d of %d servers; %d do not answer", n, len(s.servers), silent)
	}
	return reading{holder: st, left: max(0, left)}
}

// Lines returns the lines of the names that somebody holds. Of plain keys it knows only those that
// were locked through Primacy.
func (s *Store) Lines(ctx context.Context, prefix string) ([]driver.Line, error) {
	names, err := s.scan(ctx, prefix)
	if err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	var all []driver.Line
	for some := range slices.Chunk(names, 200) {
		began := boottime.Now()
		got, err := s.read(ctx, some...)
		if err != nil {
			return nil, fmt.Errorf("list: %w", err)
		}
		for i, r := range got {
			if r.holder != nil && r.holder.Lease != "" {
				all = append(all, s.views.see(some[i], began, r.holder))
			}
		}
	}
	slices.SortFunc(all, func(a, b driver.Line) int { return cmp.Compare(a.Name, b.Name) })
	return all, nil
}

// pollAfter is a random time around the interval of looks.
func (s *Store) pollAfter() time.Duration {
	d := poll
	if s.cfg.Plain {
		d = pollPlain
	}
	return d/2 + rand.N(d)
}
