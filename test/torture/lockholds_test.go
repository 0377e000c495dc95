//go:build linux

package torture

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// never is an instant that does not come.
const never = time.Duration(math.MaxInt64)

// hold is one time that somebody held a lock, as it was recorded. All times are on the boot clock.
type hold struct {
	who        string // the process, and its own number of the hold
	kind, name string
	call       lockCall
	token      uint64

	called, back time.Duration // of the call that took it
	lastYes      time.Duration // when the last Check that said yes was begun; 0: none was
	deadline     time.Duration // the latest that the holder knew of; 0: it knew of none
	no           span          // the Check that said no, if one did
	cause        string        // what it said
	freed        span          // the call that gave it back, if there was one
	over         time.Duration // its process has ended by then, and with it whatever right it had
}

// span is from when to when something took; the end is never where nobody tells of it.
type span struct{ from, to time.Duration }

// end returns in which time the hold has ended, once and for good:
//
//   - Not before the last Check that said yes was begun.
//   - Nor before it was given back, or before the last deadline that is known, whichever came
//     first. So the hold of a process that was killed or frozen counts until its deadline, though
//     nobody asked any more: it might have been thawed, and have asked. Only where Check said no
//     before that deadline, the store must have taken the lock away (nobody does so here), and then
//     nothing is said of the time between yes and no.
//   - At the latest when Check had said no, when giving it back had returned, and when a process
//     that had ended could not have had any right any more.
func (h *hold) end() span {
	e := span{h.deadline, h.over}
	if h.freed.from != 0 {
		e.from, e.to = min(e.from, h.freed.from), min(e.to, h.freed.to)
	}
	if h.no.from != 0 {
		e.to = min(e.to, h.no.to)
		if h.no.from < h.deadline {
			e.from = 0
		}
	}
	e.from = max(e.from, h.lastYes, h.called)
	e.to = max(e.to, e.from)
	return e
}

// early says whether the lock was taken away before the deadline.
func (h *hold) early() bool { return h.no.from != 0 && h.no.from < h.deadline }

func (h *hold) String() string {
	ms := func(d time.Duration) string {
		if d == never {
			return "-"
		}
		return fmt.Sprintf("%.3f", float64(d)/1e6)
	}
	e := h.end()
	return fmt.Sprintf("%s %v %s token %d: called %s, held from %s, last yes %s, deadline %s, no %s to %s (%s), "+
		"given back %s to %s; its end is in %s to %s ms",
		h.who, h.call, h.name, h.token, ms(h.called), ms(h.back), ms(h.lastYes), ms(h.deadline), ms(h.no.from),
		ms(h.no.to), h.cause,
		ms(h.freed.from), ms(h.freed.to), ms(e.from), ms(e.to))
}

// lockHistory is what all workers recorded of the locks.
type lockHistory struct {
	holds   []*hold        // in the order in which they were had
	calls   int            // to take a lock
	without map[string]int // calls that ended without the lock, by why
	unknown int            // calls whose process was killed before they had an answer
	asked   int            // Checks that said yes
}

// readLocks reads what the candidates of a line wrote. Everything has ended.
func readLocks(t testing.TB, l *line) *lockHistory {
	t.Helper()
	h := &lockHistory{without: map[string]int{}}
	for _, c := range l.candidates {
		for start := 1; start <= c.starts; start++ {
			over := c.ends[start] + l.ttl // the last renewal was sent before the end
			text, err := os.ReadFile(opsFile(c.actsFile(start)))
			if err == nil {
				err = h.read(text, fmt.Sprintf("%s.%d", c.id, start), over)
			}
			if err != nil && !os.IsNotExist(err) { // it was killed before it wrote
				t.Fatal(err)
			}
		}
	}
	slices.SortFunc(h.holds, func(a, b *hold) int {
		return cmp.Or(cmp.Compare(a.back, b.back),
			cmp.Compare(a.token, b.token))
	})
	return h
}

// readRunningLocks reads what the candidates of a line have written so far.
func readRunningLocks(t testing.TB, l *line) *lockHistory {
	t.Helper()
	h := &lockHistory{without: map[string]int{}}
	for _, c := range l.candidates {
		files, err := filepath.Glob(filepath.Join(c.dir, "ops-*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err == nil {
				err = h.read(text, c.id, 0)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return h
}

// read reads the record of one process, which ended so that over holds. A last line without its end
// is skipped.
func (h *lockHistory) read(text []byte, who string, over time.Duration) error {
	open := map[int]*hold{}
	n := 0
	for line := range bytes.Lines(text) {
		n++
		if !bytes.HasSuffix(line, []byte("\n")) {
			break
		}
		if err := h.take(strings.Fields(string(line)), open, who, over); err != nil {
			return fmt.Errorf("%s: line %d: %q: %w", who, n, line, err)
		}
	}
	for _, o := range open {
		if o.back == 0 {
			h.unknown++
		}
	}
	return nil
}

// take takes one line into the history. open has the calls and holds of this process by number.
func (h *lockHistory) take(f []string, open map[int]*hold, who string, over time.Duration) error {
	if len(f) < 3 {
		return fmt.Errorf("want a word, times and a number")
	}
	// The number of the hold comes after one time with call and free, after two with the rest.
	at, times := 2, 1
	if f[0] != "call" && f[0] != "free" {
		at, times = 3, 2
	}
	var from, to time.Duration
	var no int
	if len(f) <= at {
		return fmt.Errorf("too short")
	}
	if _, err := fmt.Sscan(strings.Join(f[1:at+1], " "), append([]any{&from, &to}[:times], &no)...); err != nil {
		return err
	}
	if f[0] == "call" {
		if len(f) != 6 || open[no] != nil {
			return fmt.Errorf("want call AT HOLD KIND NAME CALL, once")
		}
		h.calls++
		open[no] = &hold{who: fmt.Sprintf("%s#%d", who, no), kind: f[3], name: f[4], over: over, called: from,
			call: lockCall{kind: f[3], name: f[4], read: strings.Contains(f[5], "rlock"),
				try: strings.HasPrefix(f[5], "try")}}
		return nil
	}
	o := open[no]
	if o == nil {
		return fmt.Errorf("hold %d is of no call", no)
	}
	return h.note(o, f[0], span{from, to}, f[at+1:])
}

// note notes what came of a call or a hold.
func (h *lockHistory) note(o *hold, word string, s span, rest []string) (err error) {
	switch {
	case word == "not" && len(rest) == 1:
		o.back = s.to
		h.without[rest[0]]++
	case word == "held" && len(rest) == 2:
		o.back = s.to
		h.holds = append(h.holds, o)
		_, err = fmt.Sscan(strings.Join(rest, " "), &o.token, &o.deadline)
	case word == "yes" && len(rest) == 1:
		var deadline time.Duration
		_, err = fmt.Sscan(rest[0], &deadline)
		h.asked++
		o.lastYes, o.deadline = max(o.lastYes, s.from), max(o.deadline, deadline)
	case word == "no" && len(rest) == 1:
		o.no, o.cause = s, rest[0]
	case word == "free":
		o.freed = span{s.from, never}
	case word == "freed" && len(rest) == 1:
		o.freed.to = s.to
	default:
		err = fmt.Errorf("%q with %q is not known", word, rest)
	}
	return err
}
