package handover

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
	pauses "github.com/primacy-go/primacy/pause"
	"github.com/primacy-go/primacy/shards"
)

// Over returns the names whose pauses count for an election beside those of its own name: that of
// its group, if it is a shard's.
func Over(ctx context.Context, s *primacy.Session, name string) ([]string, error) {
	group, n, ok := shards.ShardOf(name)
	if !ok || primacy.CheckName(group) != nil {
		return nil, nil
	}
	line, err := s.Election(group).State(ctx)
	if err != nil {
		return nil, err
	}
	all := line.Waiting // of a group whose assigner has just gone
	if line.Leader != nil {
		all = append([]primacy.Entry{*line.Leader}, all...)
	}
	for _, member := range all {
		if of, is := shards.GroupOf(primacy.State{Leader: &member}); is && n < of {
			return []string{group}, nil
		}
	}
	return nil, nil
}

// ErrNobodyFollows says that a leader was not asked to resign, since a pause lets nobody follow.
var ErrNobodyFollows = errors.New("nobody would lead after it")

// nobodyMayFollow returns an ErrNobodyFollows, with what can be done, if a pause of name or of one
// of those over it lets nobody new be elected.
func nobodyMayFollow(ctx context.Context, st driver.Store, name string, over []string) error {
	p, err := pauses.Of(ctx, st, append([]string{name}, over...)...)
	if err != nil || p == nil || !p.NoElections {
		return err
	}
	return nobodyFollows(p)
}

func nobodyFollows(p *pauses.Pause) error {
	return fmt.Errorf("%w, since %s; name the next one with 'primacy transfer --to', or end the pause",
		ErrNobodyFollows, p)
}

// AwaitChange waits until another term than that one, or none, is the present one.
func AwaitChange(ctx context.Context, e *primacy.Election, token primacy.Token) (primacy.State, bool) {
	for st, err := range e.Observe(ctx, primacy.HeedPauses) {
		if err == nil && (st.Leader == nil || st.Leader.Token != token) {
			return st, true
		}
	}
	return primacy.State{}, false
}

const (
	keepEvery = 2 * time.Second // an admission is looked at so often while the leader stops
	keepAhead = 5 * time.Minute // one that ends sooner is repeated
	leadsSoon = 5 * time.Second // whoever is in front of the one that was named has given back by then
)

// Await waits until another term than the one under token, which was asked for its end in favour of
// to, is the present one, or none. Meanwhile it keeps to admitted, however long the leader takes to
// stop, however many others are admitted, and under whatever claim to waits: a process that has
// been restarted has another one. The new claim is admitted only while the leader that was asked
// leads: after that the first one may have led, and an admission is for one term.
//
// If a pause lets nobody else be elected, those in front of to give the name back one after the
// other: Await waits for a moment until to leads.
func (m *Mover) Await(ctx context.Context, e *primacy.Election, token primacy.Token, to string) (primacy.State, bool) {
	if to == "" {
		return AwaitChange(ctx, e, token)
	}
	k := keeper{m: m, e: e, of: token, to: to}
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() {
		for st, err := range e.Observe(ctx, primacy.WholeLine) {
			if err == nil {
				k.keep(ctx, st)
			}
		}
	})
	wg.Go(func() {
		for storeutil.Sleep(ctx, keepEvery) == nil {
			if st, err := e.State(ctx); err == nil {
				k.keep(ctx, st)
			}
		}
	})
	var last primacy.State
	over := false
	for st, err := range e.Observe(ctx, primacy.HeedPauses) {
		if err != nil || st.Leader != nil && st.Leader.Token == token {
			continue
		}
		if last = st; st.Leader != nil || !k.stands(ctx) {
			return last, true
		}
		if !over {
			over = true
			defer time.AfterFunc(leadsSoon, cancel).Stop()
		}
	}
	return last, over
}

// Earlier returns an ErrGivenUp if the one that was named leads in st by a claim of one lease, and
// waits by a claim of another: of two processes, or of one before and after a restart. A process
// that was killed keeps its place until its lease is over. Nobody can tell from the line that it is
// dead, and whoever asked must not take it for the leader.
func Earlier(st primacy.State, to string) error {
	l := st.Leader
	if to == "" || l == nil || l.ID != to {
		return nil
	}
	for _, w := range st.Waiting {
		if w.ID == to && w.Slots == 0 && w.Lease != l.Lease {
			return fmt.Errorf("%w, and handed to an earlier process of %s, which may be dead; another one waits "+
				"under the lease %s. If it is dead, nobody leads before its lease %s is over, nor after it in a pause",
				ErrGivenUp, to, w.Lease, l.Lease)
		}
	}
	return nil
}

// keeper keeps the successor that was named admitted while the leader stops.
type keeper struct {
	m  *Mover
	e  *primacy.Election
	of primacy.Token // of the term that was asked
	to string

	mu sync.Mutex // one look at a time
}

// keep admits k.to under the claim that it has in a line that was just read, unless it is admitted
// already. What fails is done by a later call.
func (k *keeper) keep(ctx context.Context, st primacy.State) {
	k.mu.Lock()
	defer k.mu.Unlock()
	next, ok := successor(st, k.to)
	if !ok || st.Leader == nil || st.Leader.Token != k.of || several(st, k.to) {
		return
	}
	now, err := k.m.pauses.Since(ctx, time.Now())
	if err != nil {
		return
	}
	for _, a := range now.Admissions(k.e.Name()) {
		if a.ID == k.to && a.Token == uint64(next.Token) && time.Until(a.Until) > keepAhead {
			return
		}
	}
	ctx, cancel := context.WithTimeout(ctx, k.m.Attempt)
	defer cancel()
	_ = pauses.Admit(ctx, k.m.Session.Store(), k.e.Name(), k.to, uint64(next.Token), k.m.by())
}

// stands says whether the one who was named is in the line.
func (k *keeper) stands(ctx context.Context) bool {
	st, err := k.e.State(ctx)
	_, waits := successor(st, k.to)
	return err == nil && (waits || st.Leader != nil && st.Leader.ID == k.to)
}
