package sim

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// Timeline is what happened in a run, in words.
type Timeline struct {
	lines []moment
}

type level uint8

const (
	detail level = iota
	news
	verdict
)

type moment struct {
	at    int64
	who   string
	clock int64
	level level
	text  string
}

// span shows nanoseconds as people read them.
type span int64

// String returns seconds with microseconds.
func (s span) String() string { return fmt.Sprintf("%.6fs", time.Duration(s).Seconds()) }

// maxNames is how many names a plan may have.
const maxNames = 9

func nameOf(name int) string { return "abcdefghi"[name : name+1] }

// say writes a line where a timeline is kept.
func (w *World) say(h *host, lv level, format string, args ...any) {
	if w.tr == nil {
		return
	}
	m := moment{at: w.now, level: lv, text: fmt.Sprintf(format, args...)}
	if h != nil {
		m.who, m.clock = h.name, h.clock()
	}
	w.tr.lines = append(w.tr.lines, m)
}

func (w *World) sayFault(f Fault, n *node) {
	who := &n.host
	text := f.Kind.String()
	switch f.Kind {
	case StoreDown, LeaderPause, LeaderCut, LeaderBoth, MemberPause, StoreRate, Delete, Revoke, Asked:
		who = nil
	}
	switch f.Kind {
	case StoreRate, NodeRate:
		text += fmt.Sprintf(": %+.2f %%", float64(f.Arg)/10_000)
	case Delete, Revoke, GiveUp, Asked:
	default:
		text += fmt.Sprintf(" for %v", span(f.For))
	}
	w.say(who, news, "FAULT %s", text)
}

// Len returns how many lines a timeline has.
func (tl *Timeline) Len() int { return len(tl.lines) }

// Print writes the timeline in columns. With most > 0 only so many lines: details go first, then
// what is oldest.
func (tl *Timeline) Print(out io.Writer, most int) error {
	lines := tl.lines
	left := 0
	if most > 0 {
		lines, left = tl.pick(most - 2)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%-13s %-4s %-20s %s\n", "true time", "who", "its clock", "what happened")
	if left > 0 {
		fmt.Fprintf(&b, "%-13s %-4s %-20s %d earlier or smaller steps are left out\n", "…", "", "", left)
	}
	for _, m := range lines {
		clock := ""
		if m.who != "" {
			clock = span(m.clock).String()
		}
		mark := ""
		if m.level == verdict {
			mark = ">>> VIOLATION: "
		}
		fmt.Fprintf(&b, "%13s %-4s %20s %s%s\n", span(m.at), m.who, clock, mark, m.text)
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// pick keeps the lines that matter most, in their order.
func (tl *Timeline) pick(most int) (kept []moment, left int) {
	big := 0
	for _, m := range tl.lines {
		if m.level > detail {
			big++
		}
	}
	small := most - big // how many details fit: the latest
	skip := 0           // how many of the big ones do not
	if small < 0 {
		skip, small = -small, 0
	}
	details := len(tl.lines) - big
	for _, m := range tl.lines {
		if m.level == detail {
			if details--; details >= small {
				continue
			}
		} else if skip > 0 {
			skip--
			continue
		}
		kept = append(kept, m)
	}
	return kept, len(tl.lines) - len(kept)
}
