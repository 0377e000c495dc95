//go:build linux

package torture

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
)

// stalls is when this machine had too little time for what a test does.
type stalls struct {
	mu    sync.Mutex
	spans [][2]time.Duration
}

// watchServer repeats a request of its own at a server until the test ends: what it takes beyond
// 50 ms is a stall, of the processors or of the disk. It shares nothing with the code under test,
// so that a fault of that is no stall.
func watchServer(tb testing.TB, request func()) *stalls {
	const pause, usual = 100 * time.Millisecond, 50 * time.Millisecond
	s, stop, done := &stalls{}, make(chan struct{}), make(chan struct{})
	tb.Cleanup(func() { close(stop); <-done })
	go func() {
		defer close(done)
		for {
			before := boottime.Now()
			select {
			case <-stop:
				return
			case <-time.After(pause):
			}
			request()
			if from, to := before+pause+usual, boottime.Now(); to > from {
				s.mu.Lock()
				s.spans = append(s.spans, [2]time.Duration{from, to})
				s.mu.Unlock()
			}
		}
	}()
	return s
}

// during returns for how long it stood still between these times.
func (s *stalls) during(from, to time.Duration) (sum time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, span := range s.spans {
		sum += max(0, min(to, span[1])-max(from, span[0]))
	}
	return sum
}

// A lease that was lost though this machine had time for its member is no excuse for anything.
func TestALostLeaseIsExcusedByAStallOnly(t *testing.T) {
	t.Parallel()
	const s = time.Second
	f := &shardFleet{T: t, ttl: 3 * s, stalls: &stalls{spans: [][2]time.Duration{{2 * s, 3 * s}}}, events: []shardEvent{
		{what: "hiccup of a", from: 2 * s, to: 5 * s}, {what: "hiccup of b", from: 18 * s, to: 21 * s},
		{what: "hiccup of c", from: 28 * s, to: 31 * s}}}
	back, wrong := f.excuse([]shardLoss{{at: 4 * s, who: "a"}, {at: 20 * s, who: "b"},
		{at: 27 * s, stood: s, who: "c"}})
	if back != 2 || len(wrong) != 1 || !strings.HasPrefix(wrong[0], "b lost") {
		t.Errorf("%d are excused, and %q is wrong", back, wrong)
	}
	if e := f.events; !e[0].fault || e[1].fault || !e[2].fault || e[2].from != 27*s {
		t.Errorf("faults are %+v", e)
	}
}
