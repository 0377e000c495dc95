//go:build linux

package interop

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
)

const crowdProcs = 10

// releases is how many are counted at each size of the line.
const releases = 40

// window is the time after a release in which all that it causes has been sent.
const window = 120 * time.Millisecond

// cost is what one release cost the two whom it concerns.
type cost struct {
	handover time.Duration
	requests int
	events   int
	detail   map[string]int
}

// chain is what was counted while so many waited.
type chain struct {
	waiters  int
	costs    []cost
	events   float64 // watch events that the server sent to anybody, a release
	idle     count   // a second, while nothing is released
	serverKB int
}

// TestAThousandWaiters: however many wait for a lock, a release costs the same few requests, and
// wakes one of them. The same is counted of etcd's Mutex, beside it, and what server and clients
// weigh. INTEROP_WAITERS sets another number of them, INTEROP_WHO another one than these two: "our
// Election", "the drop-in's Mutex".
func TestAThousandWaiters(t *testing.T) {
	size, names := 1000, []string{"our Mutex", "etcd's Mutex"}
	if text := os.Getenv("INTEROP_WAITERS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 20*crowdProcs {
			t.Fatalf("INTEROP_WAITERS=%q: want a number from %d", text, 20*crowdProcs)
		}
		size = n
	}
	if who := os.Getenv("INTEROP_WHO"); who != "" {
		if crowds[who] == nil {
			t.Fatalf("INTEROP_WHO=%q: want one of %q", who, slices.Sorted(maps.Keys(crowds)))
		}
		names = []string{who}
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			l := newLobby(t, name, size/crowdProcs)
			l.weigh()
			chains := []chain{l.count()}
			before := l.left
			took := l.sendAway()
			t.Logf("%s: %d gave up at once, in %v", name, before-l.left, took.Round(time.Millisecond))
			chains = append(chains, l.count())
			for l.left > 11 {
				l.release("leave")
			}
			chains = append(chains, l.count())
			for _, c := range chains {
				t.Logf("%s, %v", name, c)
			}
			mustBeBounded(t, chains)
		})
	}
}

// mustBeBounded checks that what a release costs is little, and does not grow with those who wait.
func mustBeBounded(t *testing.T, chains []chain) {
	t.Helper()
	few, many := chains[len(chains)-1], chains[0]
	if many.requests() > few.requests()+1 {
		t.Errorf("a release costs %d requests while %d wait, but %d while %d do", many.requests(), many.waiters,
			few.requests(), few.waiters)
	}
	for _, c := range chains {
		if c.requests() > mostRequests {
			t.Errorf("%d wait: a release costs %d requests, want no more than %d", c.waiters, c.requests(),
				mostRequests)
		}
		if c.events > mostEvents {
			t.Errorf("%d wait: a release makes the server send %.2f watch events, want no more than %d: it wakes "+
				"others", c.waiters, c.events, mostEvents)
		}
	}
}

// The bounds of what a release may cost. Requests of the two whom it concerns: the release, and
// with others than ours a look of the next and watches opened and closed. Events, to anybody: to
// those sixteen or so who are near their turn, who then hold without a request, to one who comes
// near, and to a few who were near a moment ago.
const (
	mostRequests = 8
	mostEvents   = 21
)

// count lets the line settle, measures a while without releases, and then some releases, one in
// each window.
func (l *lobby) count() chain {
	l.Helper()
	time.Sleep(2 * time.Second)
	if got := l.stands(); got != l.left {
		l.Errorf("%d stand, want %d", got, l.left)
	}
	c := chain{waiters: l.left, serverKB: resident(l.serverPID())}
	before := l.readCount()
	time.Sleep(2 * time.Second)
	begin := l.readCount()
	c.idle = begin.aSecond(before)
	type step struct {
		from, next news
		at, took   time.Duration
	}
	var steps []step
	for range min(releases, l.left/2) {
		s := step{from: l.who, at: boottime.Now()}
		s.took = l.release("release")
		s.next = l.who
		steps = append(steps, s)
		time.Sleep(s.at + window - boottime.Now())
	}
	c.events = (l.readCount().events - begin.events) / float64(len(steps))
	for _, s := range steps {
		one := cost{handover: s.took, detail: map[string]int{}}
		one.add(l.seen(s.from, s.at, s.at+window))
		one.add(l.seen(s.next, s.at, s.at+window))
		if s.took > time.Second {
			l.Logf("a release took %v; the one who left: %v; the next: %v", s.took, l.seen(s.from, s.at, s.at+s.took),
				l.seen(s.next, s.at-window, s.at+s.took))
		}
		c.costs = append(c.costs, one)
	}
	return c
}

// seen asks for what one sent and heard in some time.
func (l *lobby) seen(who news, from, to time.Duration) []string {
	l.Helper()
	fmt.Fprintf(who.proc.in, "seen %s %d %d\n", who.arg, from, to)
	return strings.Split(l.expect("seen").arg, ",")
}

// add adds what one of the two sent and heard.
func (c *cost) add(seen []string) {
	for _, s := range seen {
		switch what, _, _ := strings.Cut(s, "@"); what {
		case "":
		case "event":
			c.events++
		default:
			c.requests++
			c.detail[what]++
		}
	}
}

// requests is the median: in some window one of the two looks by chance, or renews its lease.
func (c chain) requests() int { return c.median().requests }

func (c chain) median() cost {
	sorted := slices.SortedFunc(slices.Values(c.costs), func(a, b cost) int { return a.requests - b.requests })
	return sorted[len(sorted)/2]
}

func (c chain) String() string {
	m := c.median()
	most, handover := 0, []time.Duration{}
	for _, one := range c.costs {
		most = max(most, one.requests)
		handover = append(handover, one.handover)
	}
	slices.Sort(handover)
	var detail []string
	for _, what := range slices.Sorted(maps.Keys(m.detail)) {
		detail = append(detail, fmt.Sprintf("%d %s", m.detail[what], what))
	}
	return fmt.Sprintf("%d wait: a release: %d requests (%s), at most %d; %.2f events sent by the server, %d to "+
		"these two; "+
		"hand-over p50 %v, max %v. Idle, a second: %.0f requests, %.2f events, %.0f ms of the server's CPU. "+
		"Server %d MB",
		c.waiters, m.requests, strings.Join(detail, ", "), most, c.events, m.events,
		handover[len(handover)/2].Round(10*time.Microsecond), handover[len(handover)-1].Round(10*time.Microsecond),
		c.idle.requests, c.idle.events, 1000*c.idle.cpu, c.serverKB/1024)
}
