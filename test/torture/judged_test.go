//go:build linux

package torture

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/safety"
)

func TestTheScheduleIsAFunctionOfTheSeed(t *testing.T) {
	row := func(seed uint64) (text []string) {
		for i, la := range append(lanes(), transferLane()) {
			next := la.schedule(seed, i, 2, func(fault) bool { return true })
			kinds := map[string]int{}
			for range len(la.kinds) {
				a := next()
				kinds[a.fault.name]++
				text = append(text, fmt.Sprint(a.fault.name, a.pause, a.line, a.rng.Uint64()))
			}
			for _, h := range la.kinds {
				if kinds[h.name] == 0 {
					t.Errorf("lane %s: %q does not come in the first %d faults", la.name, h.name, len(la.kinds))
				}
			}
		}
		return text
	}
	first := row(1)
	if !reflect.DeepEqual(first, row(1)) {
		t.Error("one seed gives two schedules")
	}
	if reflect.DeepEqual(first, row(2)) {
		t.Error("two seeds give one schedule")
	}
	if !strings.HasPrefix(first[0], cutPaused) {
		t.Errorf("the first fault is %s, want %s", first[0], cutPaused)
	}
}

// TestJudge shows that the judge bites, and what it lets pass.
func TestJudge(t *testing.T) {
	const ms = time.Millisecond
	ttl := 3 * time.Second
	for name, test := range map[string]struct {
		// first and last act of run1 under token 1; primacy2 acts under token 2 from 10 s to 12 s
		older    [2]time.Duration
		removed  []late
		overlaps int
		// of two processes that want a lock: the tokens are those of their claims times 65,536, and
		// more
		lock bool
	}{
		"one after another": {older: [2]time.Duration{5 * time.Second, 9 * time.Second}},
		"two at once": {older: [2]time.Duration{5 * time.Second, 10*time.Second + 50*ms},
			overlaps: 1},
		"an act after the younger term": {older: [2]time.Duration{12*time.Second + 50*ms,
			12*time.Second + 100*ms}, overlaps: 0},
		"its claim was removed": {older: [2]time.Duration{5 * time.Second, 11 * time.Second},
			removed: []late{{token: 1, thaw: 9 * time.Second}}},
		"it acts on for more than a ttl": {older: [2]time.Duration{5 * time.Second, 11 * time.Second},
			removed: []late{{token: 1, thaw: 7 * time.Second}}, overlaps: 1},
		"the claim of a lock was removed": {older: [2]time.Duration{5 * time.Second, 11 * time.Second},
			removed: []late{{token: 1, thaw: 9 * time.Second}}, lock: true},
		"two hold a lock at once": {older: [2]time.Duration{5 * time.Second, 10*time.Second + 50*ms},
			overlaps: 1, lock: true},
		"the claim of the younger was removed": {older: [2]time.Duration{5 * time.Second, 11 * time.Second},
			removed: []late{{token: 2, thaw: 9500 * ms}}, overlaps: 1},
	} {
		l := &line{name: "n", ttl: ttl, dir: t.TempDir(), removals: test.removed,
			held: map[uint64]bool{},
			sink: &sink{called: map[safety.Stamp]time.Duration{}}}
		write := func(id, kind string, token int, from, to time.Duration) {
			c := &candidate{line: l, id: id, kind: kind, dir: filepath.Join(l.dir, id), tails: map[string]*tail{}}
			if test.lock {
				c.kind, token = kindMutex, token<<16|3
			}
			l.candidates = append(l.candidates, c)
			var text strings.Builder
			for at := from; at <= to; at += actEvery {
				fmt.Fprintf(&text, "%d %d %s\n", at.Nanoseconds(), token, id)
			}
			if err := os.Mkdir(c.dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(c.dir, "acts-1"), []byte(text.String()), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("run1", kindRun, 1, test.older[0], test.older[1])
		write("primacy2", kindPrimacy, 2, 10*time.Second, 12*time.Second)
		v, err := judge(l)
		if err != nil {
			t.Fatal(err)
		}
		if len(v.overlaps) != test.overlaps || test.overlaps > 0 && v.err() == nil {
			t.Errorf("%s: overlaps %v, faults %v, want %d", name, v.overlaps, v.err(), test.overlaps)
		}
		if name == "an act after the younger term" && v.err() == nil {
			t.Errorf("%s: want the token that went back to be found", name)
		}
	}
}
