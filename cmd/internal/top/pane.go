package top

import (
	"fmt"
	"strings"
	"time"

	"github.com/primacy-go/primacy"
)

// drawDetail draws what is known of the selected row below the list, or the dialog.
func (u *ui) drawDetail(g *grid) {
	height := u.detailHeight()
	top := u.h - 1 - height
	if height == 0 {
		return
	}
	rule := "─"
	if u.ascii {
		rule = "-"
	}
	g.put(0, top, g.w, strings.Repeat(rule, g.w), dim)
	if u.mode == asking {
		for i, l := range u.dialogLines(g.w) {
			if i < height-1 {
				g.puts(0, top+1+i, l...)
			}
		}
		return
	}
	r := u.current()
	if r == nil {
		return
	}
	head := u.headLines(r)
	for i, l := range head {
		g.puts(0, top+1+i, l...)
	}
	y, room := top+1+len(head), u.h-2-top-len(head)
	lines := u.lineLines(r)
	for i, l := range lines {
		if i == room-1 && len(lines) > room {
			l = []part{{fmt.Sprintf("%d more: primacy status %s", len(lines)-i, r.name), dim}}
		}
		if i < room {
			g.puts(0, y+i, l...)
		}
	}
}

// headLines say who leads, under which token, since when, and what is left of the lease.
func (u *ui) headLines(r *row) [][]part {
	word, st := u.value(r, "health")
	lines := [][]part{{{r.name, bold}, {"  ", plain}, {word, st}}}
	l := r.state.Leader
	if l == nil {
		lines = append(lines, []part{{"nobody leads, for " + u.since(r), plain}})
		if r.last.Why != "" {
			last := fmt.Sprintf("the last was %s, token %d: %s", r.last.ID, r.last.Token, r.last.Why)
			lines = append(lines, []part{{last, plain}})
		}
		return lines
	}
	text := fmt.Sprintf("%s, token %d, for %s", r.leader(), l.Token, u.since(r))
	if !r.since.IsZero() {
		text += ", since " + r.since.Local().Format("2006-01-02 15:04:05")
	}
	lines = append(lines, []part{{text, plain}})
	text = "lease " + l.Lease
	switch {
	case u.stale():
		text += ": not known at present"
	case r.leased:
		text += fmt.Sprintf(": %s of %s left", r.lease.Left.Truncate(time.Second), r.lease.TTL)
	default:
		text += ": nobody but its holder can tell what is left"
	}
	if v := string(l.Value); v != "" && v != l.ID {
		text += "; value " + u.said(r.name, *l)
	}
	if l.Note != "" {
		text += "; " + l.Note
	}
	return append(lines, []part{{text, dim}})
}

// lineLines are those who stand in the line, behind who leads.
func (u *ui) lineLines(r *row) [][]part {
	lines := [][]part{{{fmt.Sprintf("LINE (%d waiting)", r.waiting()), dim | bold}}}
	n := 0
	for _, w := range r.state.Waiting {
		where := "also holds "
		if !w.Held {
			n++
			where = fmt.Sprintf("%2d ", n)
		}
		lines = append(lines, []part{{where + whoLeads(&w), plain}, {share(w), dim}})
	}
	return lines
}

// share says beside whom a claim may hold.
func share(s primacy.Entry) string {
	switch {
	case s.Slots < 0:
		return " shared"
	case s.Slots > 0:
		return fmt.Sprintf(" slot of %d", s.Slots)
	}
	return ""
}

// drawHelp draws the help over the whole screen.
func (u *ui) drawHelp(g *grid) {
	lines := helpLines()
	y := 0
	if u.stale() {
		u.drawStale(g)
		y = 1
	}
	height := max(u.h-1-y, 1)
	u.scrolled = max(min(u.scrolled, len(lines)-height), 0)
	for i, l := range lines[u.scrolled:] {
		if i < height {
			g.puts(0, y+i, l...)
		}
	}
	foot := "esc goes back"
	if left := len(lines) - u.scrolled - height; left > 0 {
		foot = fmt.Sprintf("%d more below: down; esc goes back", left)
	}
	g.put(0, u.h-1, g.w, foot, dim)
}

func helpLines() (lines [][]part) {
	for _, l := range []string{
		"up down j k       select               / filter by name or ID, as you type",
		"page up, page down, home, end",
		"t                 transfer: have the leader hand over to a candidate you choose",
		"r                 resign: have the leader give up; who waits longest is next",
		"d                 drain: have a member hand over all it leads, here and elsewhere",
		"                  Each asks for a reason and has you type the name.",
		"^L draws all again, ^Z stops, q leaves",
		"",
		"nobody leads      nobody leads, and somebody waits",
		"deserted          an election that was led in the last day, and has no candidates any more",
		"flapping          three or more terms of an election began in the last 15 minutes",
		"lease ending      less than a third of the leader's lease is left: its renewals do not arrive",
		"free              no candidates any more: a lock, or an election without a history",
		"SINCE >2m         it was so already when this page first looked, 2 minutes ago",
		"CHG               changes of the leader in the last 15 minutes; 2+: at least 2",
		"LEASE             left of the leader's lease, as the store tells it; -: it cannot",
		"STALE             the store has not answered for a while: what is shown is what was",
	} {
		lines = append(lines, []part{{l, plain}})
	}
	return lines
}

func (u *ui) dialogHeight() int { return 6 + min(len(u.dialog.choices), 6) }

// dialogLines are the dialog as it stands.
func (u *ui) dialogLines(w int) [][]part {
	d := u.dialog
	lines := [][]part{{{d.title(), bold}}}
	if d.failure != "" {
		return append(lines, []part{{d.failure + ": press any key", red | bold}})
	}
	first := max(0, d.choice-5)
	for i := first; i < min(first+6, len(d.choices)); i++ {
		mark, st := "  ", plain
		if i == d.choice {
			mark, st = "> ", bold
		}
		lines = append(lines, []part{{mark + d.choices[i], st}})
	}
	if d.step == stepChoose {
		return append(lines, []part{{"whom? up and down choose", dim}})
	}
	lines = append(lines, input("reason (may be empty): ", d.reason, d.step == stepReason, w))
	if d.step == stepConfirm {
		lines = append(lines, []part{{"to do it, type " + d.what + ": ", dim}, {d.asked, bold}},
			input("> ", d.typed, true, w))
	}
	if d.warning != "" || d.wrong != "" {
		lines = append(lines, []part{{strings.TrimSpace(d.warning + " " + d.wrong), red | bold}})
	}
	return lines
}

// input is a line that is typed; of a long one the end shows.
func input(prompt, text string, here bool, w int) []part {
	r := []rune(text)
	if room := max(w/2, 8); len(r) > room {
		r = append([]rune("..."), r[len(r)-room+3:]...)
	}
	p := []part{{prompt, dim}, {string(r), plain}}
	if here {
		p = append(p, part{" ", invert})
	}
	return p
}
