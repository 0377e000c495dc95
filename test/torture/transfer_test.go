//go:build linux

package torture

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

// transferLane has the leaders of elections asked to hand over to one who waits. In the row of
// kinds most hand-overs are disturbed: what disturbs begins while the request is on its way, or the
// leader stops its work, or the store is asked.
func transferLane() lane {
	return lane{name: "transfers", most: 2 * time.Second, elections: true, kinds: []fault{
		{"transfer", false, handOver(undisturbed, nil)},
		{"transfer", false, handOver(undisturbed, nil)}, // twice as often as the others
		{"transfer, successor killed", false, handOver("successor killed", killEither(successorOf))},
		{"transfer, leader killed", false, handOver("leader killed", killEither(leaderOf))},
		{"transfer, leader frozen", false, handOver("leader frozen", freezeEither(leaderOf))},
		{"transfer, successor frozen", false, handOver("successor frozen", freezeEither(successorOf))},
		{"transfer, leader cut off", false, handOver("leader cut off", cutEither(leaderOf))},
		{"transfer, successor cut off", false, handOver("successor cut off", cutEither(successorOf))},
		{"transfer, etcd leader moved", false, handOver("etcd leader moved", moveMeanwhile)},
	}}
}

// tally counts requests to hand over: those that the store took, those that found the line changed
// or no store (refused), and who led next.
type tally struct{ asked, refused, successor, other, nobody int }

func (t tally) String() string {
	return fmt.Sprintf("%d taken, %d reached the successor, %d another, %d nobody in time; %d refused", t.asked,
		t.successor, t.other, t.nobody, t.refused)
}

// succession is a hand-over under way.
type succession struct {
	line              *line
	leader, successor *candidate
}

func leaderOf(s *succession) *candidate    { return s.leader }
func successorOf(s *succession) *candidate { return s.successor }

// disturbance does harm to a hand-over, and undoes it.
type disturbance func(s *torture, x *succession, rng *rand.Rand)

// disturbed within this time: a hand-over mostly takes no longer.
const soonAfter = 60 * time.Millisecond

// handOver asks the leader of a line to hand over to one who waits, and counts who leads next.
func handOver(how string, disturb disturbance) func(*torture, *line, *rand.Rand) (string, error) {
	return func(s *torture, l *line, rng *rand.Rand) (string, error) {
		x, successor, err := s.succession(l, rng)
		if err != nil {
			return "", err
		}
		done, delay := make(chan struct{}), between(rng, 0, soonAfter)
		go func() {
			defer close(done)
			if disturb != nil {
				time.Sleep(delay)
				disturb(s, x, rng)
			}
		}()
		ctx, cancel := context.WithTimeout(context.Background(), l.ttl)
		defer cancel()
		token, err := s.asker.Election(l.name).Ask(ctx, primacy.Request{To: successor.ID, Reason: "torture: " + how})
		if err != nil {
			<-done
			l.count(how, func(t *tally) { t.refused++ })
			return "", fmt.Errorf("transfer not asked for: %w", errMissed)
		}
		next, under := s.nextLeader(l, uint64(token))
		<-done
		l.count(how, func(t *tally) {
			t.asked++
			switch {
			case next == nil:
				t.nobody++
			case next == x.successor && under == uint64(successor.Token):
				t.successor++
			default:
				t.other++
			}
		})
		return "", nil
	}
}

func (l *line) count(how string, add func(*tally)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.transfers[how]
	add(&t)
	l.transfers[how] = t
}

// succession looks for a leader and a successor: not the next in the line if there is another, for
// that one would lead anyway.
func (s *torture) succession(l *line, rng *rand.Rand) (*succession, primacy.Entry, error) {
	none := primacy.Entry{}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	st, err := s.asker.Election(l.name).State(ctx)
	if err != nil {
		return nil, none, errMissed
	}
	leader, _ := l.leader()
	waiting := st.Waiting[min(1, max(0, len(st.Waiting)-1)):]
	if leader == nil || st.Leader == nil || leader.id != st.Leader.ID || len(waiting) == 0 {
		return nil, none, errMissed
	}
	successor := waiting[rng.IntN(len(waiting))]
	i := slices.IndexFunc(l.candidates, func(c *candidate) bool { return c.id == successor.ID })
	if i < 0 || l.candidates[i] == leader { // one that was killed may still stand where it led before
		return nil, none, errMissed
	}
	return &succession{l, leader, l.candidates[i]}, successor, nil
}

// nextLeader waits for the first act under a larger token, not for ever.
func (s *torture) nextLeader(l *line, after uint64) (*candidate, uint64) {
	for end := time.Now().Add(2 * l.ttl); time.Now().Before(end); time.Sleep(pollEvery) {
		var first *candidate
		var under uint64
		for _, c := range l.candidates {
			if last, ok := c.last(); ok && last.token > after && (first == nil || last.token < under) {
				first, under = c, last.token
			}
		}
		if first != nil {
			return first, under
		}
	}
	return nil, 0
}

func killEither(whom func(*succession) *candidate) disturbance {
	return func(_ *torture, x *succession, rng *rand.Rand) {
		c := whom(x)
		if !c.faultMu.TryLock() {
			return
		}
		defer c.faultMu.Unlock()
		send(syscall.SIGKILL, c.some(rng)...)
	}
}

// some returns one of a candidate's processes.
func (c *candidate) some(rng *rand.Rand) []proc {
	if supervisor, guardian, command, ok := c.parts(); ok {
		return []proc{supervisor, guardian, command}[rng.IntN(3):][:1]
	}
	if p, ok := c.main(); ok {
		return []proc{p}
	}
	return nil
}

func freezeEither(whom func(*succession) *candidate) disturbance {
	return func(_ *torture, x *succession, rng *rand.Rand) {
		c := whom(x)
		if !c.faultMu.TryLock() {
			return
		}
		defer c.faultMu.Unlock()
		frozen := c.some(rng)
		send(syscall.SIGSTOP, frozen...)
		time.Sleep(between(rng, x.line.ttl/5, x.line.ttl*3/2))
		send(syscall.SIGCONT, frozen...)
	}
}

func cutEither(whom func(*succession) *candidate) disturbance {
	return func(s *torture, x *succession, rng *rand.Rand) {
		cut := []*candidate{whom(x)}
		each(cut, func(p *etcdtest.Proxy) { p.Hold() })
		s.pause(between(rng, x.line.ttl/5, x.line.ttl*3/2))
		each(cut, (*etcdtest.Proxy).Heal)
	}
}

func moveMeanwhile(s *torture, _ *succession, rng *rand.Rand) {
	_ = s.cluster.Move(s.cluster.Members[rng.IntN(len(s.cluster.Members))], 5*time.Second)
}

// transferTable tells what became of the hand-overs of a line.
func (l *line) transferTable() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var b strings.Builder
	var all tally
	for _, how := range sorted(l.transfers) {
		t := l.transfers[how]
		fmt.Fprintf(&b, "  transfer, %-39s %v\n", how, t)
		all = tally{all.asked + t.asked, all.refused + t.refused, all.successor + t.successor, all.other + t.other,
			all.nobody + t.nobody}
	}
	if b.Len() > 0 {
		fmt.Fprintf(&b, "  %-49s %v\n", "transfers", all)
	}
	return b.String()
}

const undisturbed = "undisturbed" // by the lane of transfers; the other lanes know nothing of it

// expectTransfers fails the test if so many hand-overs of a line, or more, were asked for and none
// reached the successor.
func (s *torture) expectTransfers(l *line, how string, enough int) {
	s.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := l.transfers[how]; t.asked >= enough && t.successor == 0 {
		s.Errorf("%s: transfers, %s: %v", l.name, how, t)
	}
}

// TestTransfers has leaders asked to hand over, again and again, with no faults but those that
// disturb the hand-overs.
func TestTransfers(t *testing.T) {
	onlyInVerify(t)
	t.Parallel()
	d, ttl, seed := forHow(t, "TRANSFERS_FOR", 15*time.Second), forHow(t, "TORTURE_TTL", 3*time.Second), newSeed(t)
	t.Logf("TORTURE_SEED=%d TRANSFERS_FOR=%v TORTURE_TTL=%v", seed, d, ttl)
	s := newTorture(t, seed, ttl)
	l := s.addLine("transfers", kindRun, kindPrimacy, kindPrimacy, kindRun)
	s.asker = openSession(t, primacy.Options{ID: "torture"}, s.cluster.Endpoints()...)
	verdicts := s.run([]lane{transferLane()}, d)
	t.Log("\n" + s.table(verdicts, "Transfers"))
	s.expect(verdicts[0], false)
	s.expectTransfers(l, undisturbed, 3)
	if t.Failed() {
		t.Logf("this run: TORTURE_SEED=%d", seed)
	}
}
