//go:build linux

package torture

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

const (
	clusterTTL = 5 * time.Second
	frozenFor  = 8 * time.Second
)

// TestCluster freezes the three members of a cluster one after another and kills its leader, while
// one session leads all the time, two others hand a name to and fro, and one observes that.
func TestCluster(t *testing.T) {
	onlyInVerify(t)
	t.Parallel()
	c := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	// At this ttl an election inside etcd leaves room for one more try that hangs, and no second
	// one. So the tries are short; and the work stops at once, so the contexts may live until
	// shortly before the deadline.
	o := primacy.Options{TTL: clusterTTL, RenewEvery: clusterTTL / 10, RenewAttempt: clusterTTL / 10,
		Grace: clusterTTL / 50}
	session := func() *primacy.Session { return openSession(t, o, c.Endpoints()...) }
	holders := []*holder{
		watchHolder(t, "ttl 5 s, short tries", session(), true),
		watchHolder(t, "default options", openSession(t, primacy.Options{}, c.Endpoints()...), true),
		// to see how near it comes
		watchHolder(t, "ttl 5 s alone", openSession(t, primacy.Options{TTL: clusterTTL}, c.Endpoints()...), false),
	}
	r := &relay{name: "quiet", gaps: map[string]spread{}, delays: map[string]spread{},
		unseen: map[primacy.Token]time.Duration{}}
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for range 2 {
		e := session().Election("baton")
		wg.Go(func() { r.run(ctx, e) })
	}
	e := session().Election("baton")
	wg.Go(func() { r.observe(ctx, e) })
	r.await(t, 10)

	for i, m := range c.Members {
		r.freeze(t, c, m, fmt.Sprintf("member %d frozen", i))
	}
	r.freeze(t, c, c.WaitLeader(), "again the leader")
	leader := c.WaitLeader()
	r.phase("etcd leader killed")
	leader.Kill()
	c.WaitLeader()
	r.await(t, 5)
	leader.Restart()
	r.phase("quiet again")
	r.await(t, 10)
	stop()
	wg.Wait()
	for _, h := range holders {
		h.verify(t)
	}
	r.verify(t)
}

// freeze freezes a member and thaws it. One that led etcd is started anew instead: that it may wake
// and revoke leases that are alive is another story, see TestWokenEtcdLeader.
func (r *relay) freeze(t *testing.T, c *etcdtest.Cluster, m *etcdtest.Server, phase string) {
	t.Helper()
	led := c.WaitLeader() == m
	if led {
		phase += " (etcd leader)"
	}
	r.phase(phase)
	m.Stop()
	waitUntil(boottime.Now() + frozenFor)
	if led {
		m.Restart()
		r.phase("after its restart")
	} else {
		m.Cont()
		r.phase("after the thaw")
	}
	c.WaitLeader()
	r.await(t, 5)
}

// holder is a term that nothing ends, and what was seen of it.
type holder struct {
	name  string
	must  bool // live
	term  *primacy.Term
	stop  chan struct{}
	ended chan struct{}
	asked int
	least time.Duration
	no    error
}

// watchHolder wins a term and asks it every millisecond whether it leads.
func watchHolder(t *testing.T, name string, s *primacy.Session, must bool) *holder {
	t.Helper()
	term := campaign(t, s.Election("held/"+name), 30*time.Second)
	h := &holder{name: name, must: must, term: term, stop: make(chan struct{}), ended: make(chan struct{}),
		least: term.Remaining()}
	go func() {
		defer close(h.ended)
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for h.no == nil {
			select {
			case <-tick.C:
			case <-h.stop:
				return
			}
			h.asked++
			if h.no = h.term.Check(); h.no == nil {
				h.least = min(h.least, h.term.Remaining())
			}
		}
	}()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		term.Resign(ctx)
	})
	return h
}

func (h *holder) verify(t *testing.T) {
	close(h.stop)
	<-h.ended
	t.Logf("held with %-21s asked %d times, at least %v left, said no: %v; context: %v", h.name+":", h.asked,
		h.least.Round(time.Millisecond),
		h.no, context.Cause(h.term.Context()))
	if h.must && (h.no != nil || h.term.Context().Err() != nil) {
		t.Errorf("the term with %s was lost: %v, %v", h.name, h.no, context.Cause(h.term.Context()))
	}
}

// relay is a name that two sessions hand to and fro, and how long things took, by what was done to
// the cluster.
type relay struct {
	mu       sync.Mutex
	name     string // of the phase
	phases   []string
	gaps     map[string]spread // from the call of Resign to the win of the other
	delays   map[string]spread // from a win to its sight by the observer
	resigned time.Duration
	token    primacy.Token
	won      int
	unseen   map[primacy.Token]time.Duration // when they were won
	seen     primacy.Token                   // the newest
	sights   int
	faults   []error
}

func (r *relay) phase(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.name = name
}

// run campaigns, leads for a moment, resigns, and again.
func (r *relay) run(ctx context.Context, e *primacy.Election) {
	for ctx.Err() == nil {
		term, err := e.Campaign(ctx, nil)
		if err != nil {
			if ctx.Err() == nil {
				r.fault(fmt.Errorf("campaign: %w", err))
			}
			return
		}
		r.win(term)
		select { // what leads does some work
		case <-time.After(200 * time.Millisecond):
		case <-term.Context().Done():
			r.fault(fmt.Errorf("a term was lost: %w", context.Cause(term.Context())))
		}
		if err := term.Check(); err != nil {
			r.fault(fmt.Errorf("a term was lost: %w", err))
		}
		r.mu.Lock()
		r.resigned = boottime.Now()
		r.mu.Unlock()
		if err := term.Resign(context.WithoutCancel(ctx)); err != nil {
			r.fault(fmt.Errorf("resign: %w", err))
		}
	}
}

func (r *relay) fault(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = append(r.faults, fmt.Errorf("%s: %w", r.name, err))
}

func (r *relay) win(term *primacy.Term) {
	now := boottime.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if term.Token() <= r.token {
		r.faults = append(r.faults, fmt.Errorf("%s: token %d after %d", r.name, term.Token(), r.token))
	}
	r.token = term.Token()
	r.won++
	if r.resigned != 0 {
		r.add(r.gaps, now-r.resigned)
	}
	if r.seen >= r.token { // the observer may be the first to know
		r.add(r.delays, 0)
	} else {
		r.unseen[r.token] = now
	}
}

func (r *relay) add(to map[string]spread, d time.Duration) {
	if len(r.phases) == 0 || r.phases[len(r.phases)-1] != r.name {
		r.phases = append(r.phases, r.name)
	}
	to[r.name] = append(to[r.name], d)
}

// observe notes when the observer saw each term or, where it was over by then, a later one.
func (r *relay) observe(ctx context.Context, e *primacy.Election) {
	for st, err := range e.Observe(ctx) {
		if err != nil || st.Leader == nil {
			continue // shown once where the store does not answer; what counts is the delay
		}
		r.mu.Lock()
		switch {
		case st.Leader.Token > r.seen:
			r.seen, r.sights = st.Leader.Token, r.sights+1
		case st.Leader.Token < r.seen:
			r.faults = append(r.faults, fmt.Errorf("%s: the observer was shown token %d after %d", r.name,
				st.Leader.Token, r.seen))
		}
		now := boottime.Now()
		for token, won := range r.unseen {
			if token <= r.seen {
				r.add(r.delays, now-won)
				delete(r.unseen, token)
			}
		}
		r.mu.Unlock()
	}
}

// await waits until so many more terms were won and seen.
func (r *relay) await(t *testing.T, n int) {
	t.Helper()
	count := func() (won, seen int) { r.mu.Lock(); defer r.mu.Unlock(); return r.won, r.won - len(r.unseen) }
	won, seen := count()
	eventually(t, 60*time.Second, fmt.Sprintf("%d more terms", n), func() bool {
		w, s := count()
		return w >= won+n && s >= seen+n
	})
}

func (r *relay) verify(t *testing.T) {
	done := map[string]bool{}
	for _, p := range r.phases {
		if done[p] {
			continue
		}
		done[p] = true
		t.Logf("%-30s Resign to the next win: %v; a win to its sight: %v", p+":", r.gaps[p], r.delays[p])
		// The library's own bounds: a stream that is silent for 5 s is opened anew, and that takes
		// a call or two.
		for _, d := range r.delays[p] {
			if d > 10*time.Second {
				t.Errorf("%s: the observer saw a term %v after it was won", p, d)
			}
		}
	}
	t.Logf("%d terms won; the observer was shown %d of them and never an older one", r.won, r.sights)
	for _, err := range r.faults {
		t.Error(err)
	}
}
