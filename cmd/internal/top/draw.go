package top

import (
	"fmt"
	"strings"
	"time"
)

// draw makes the picture of the page.
func (u *ui) draw() *grid {
	g := newGrid(u.w, u.h, u.ascii)
	if u.mode == helping {
		u.drawHelp(g)
		return g
	}
	u.drawTitle(g)
	u.drawList(g)
	u.drawDetail(g)
	u.drawFoot(g)
	return g
}

// layout: the title, the columns' names, the list, the detail behind a rule, the foot.
func (u *ui) listHeight() int { return max(u.h-3-u.detailHeight(), 1) }

func (u *ui) detailHeight() int {
	switch {
	case u.mode == asking:
		return min(u.dialogHeight()+1, max(u.h-5, 0))
	case u.h < 14:
		return 0
	}
	return min(max(u.h/3, 7), 20)
}

// drawTitle says what is shown, and how old it is: a page must not look live when it is not.
func (u *ui) drawTitle(g *grid) {
	if u.stale() {
		u.drawStale(g)
		return
	}
	when := "read " + u.view.asOf.Format("15:04:05") + " "
	trouble := 0
	for _, r := range u.rows {
		if r.health < fine {
			trouble++
		}
	}
	x := g.puts(0, 0, part{"primacy top", bold}, part{"  " + u.store + "  ", plain}, part{u.counts(), plain})
	if trouble > 0 {
		x = g.puts(x, 0, part{fmt.Sprintf(", %d in trouble", trouble), red | bold})
	}
	if room := g.w - x - len(when); len(u.view.paused) > 0 && room > len(pausedMark)+8 {
		text := []rune(pausedMark + strings.Join(u.view.paused, "; "))
		x = g.puts(x, 0, part{string(text[:min(len(text), room-1)]), yellow | bold})
	}
	if x+len(when) < g.w {
		g.put(g.w-len(when), 0, len(when), when, plain)
	}
}

// pausedMark stands before what is paused.
const pausedMark = ", PAUSED: "

func (u *ui) counts() string {
	if u.filter != "" {
		return fmt.Sprintf("%d of %d with %q", len(u.rows), len(u.view.rows), u.filter)
	}
	if u.view.unlooked > 0 {
		return fmt.Sprintf("%d names, %d more not looked at", len(u.rows), u.view.unlooked)
	}
	return fmt.Sprintf("%d names", len(u.rows))
}

func (u *ui) drawStale(g *grid) {
	text := "STALE: " + u.store + " has not answered yet"
	if !u.view.asOf.IsZero() {
		text = fmt.Sprintf("STALE: as it was at %s, %s ago; %s does not answer", u.view.asOf.Format("15:04:05"),
			ago(u.age()), u.store)
	}
	if u.view.err != nil {
		text += ": " + u.view.err.Error()
	}
	g.put(0, 0, g.w, text, red|bold)
	g.paint(0, invert)
}

// drawList draws the rows that fit, the selected one among them, and tells the watcher which they
// are.
func (u *ui) drawList(g *grid) {
	height := u.listHeight()
	cols := u.columns(g.w)
	for _, c := range cols {
		g.put(c.x, 1, c.width, c.title, dim|bold)
	}
	at := 0
	if len(u.rows) > 0 {
		at = u.position()
	}
	u.first = max(min(u.first, at, len(u.rows)-height), at-height+1, 0)
	names := []string{}
	if r := u.current(); r != nil {
		names = append(names, r.name)
	}
	for i := u.first; i < min(u.first+height, len(u.rows)); i++ {
		u.drawRow(g, 2+i-u.first, u.rows[i], cols, i == at)
		names = append(names, u.rows[i].name)
	}
	u.watch.want(names)
	if len(u.rows) == 0 && !u.view.asOf.IsZero() {
		text := "nobody leads or waits. Start one: primacy run NAME -- COMMAND"
		if u.filter != "" {
			text = fmt.Sprintf("no name or ID has %q: esc shows all", u.filter)
		}
		g.put(2, 3, g.w-2, text, plain)
	}
}

func (u *ui) drawRow(g *grid, y int, r *row, cols []column, selected bool) {
	if selected {
		g.put(0, y, 1, ">", bold)
	}
	for _, c := range cols {
		text, st := u.value(r, c.what)
		g.put(c.x, y, c.width, text, st)
	}
	if selected {
		g.paint(y, invert)
	}
}

// value is what a column says of a row.
func (u *ui) value(r *row, what string) (string, style) {
	switch what {
	case "dot":
		if u.stale() {
			return "?", plain
		}
		return r.health.dot(u.ascii), r.health.style()
	case "health":
		if u.stale() {
			return "was " + r.health.word(r.shared()), plain
		}
		return r.health.word(r.shared()), r.health.style()
	case "name":
		return r.name, plain
	case "leader":
		return r.leaders(), plain
	case "since":
		return u.since(r), plain
	case "token":
		if r.state.Leader == nil {
			return "-", plain
		}
		return r.state.Leader.Token.String(), plain
	case "waiting":
		return fmt.Sprint(r.waiting()), plain
	case "changes":
		return changes(r), plain
	}
	return u.leaseText(r), plain
}

// since says how long it has been so, as of when that was read; ">" means that it was so before
// anybody looked.
func (u *ui) since(r *row) string {
	now := u.now()
	if u.stale() {
		now = u.view.asOf
	}
	if r.since.IsZero() {
		return ">" + ago(now.Sub(r.before))
	}
	return ago(now.Sub(r.since))
}

// changes says how often the leader changed; "+" means at least.
func changes(r *row) string {
	if r.whole {
		return fmt.Sprint(r.changes)
	}
	return fmt.Sprintf("%d+", r.changes)
}

// leaseText is a bar and the seconds, as the store told them; what is not known is not drawn.
func (u *ui) leaseText(r *row) string {
	if u.stale() || !r.leased || r.lease.TTL <= 0 {
		return "-"
	}
	const width = 4
	full := min(max(int((float64(r.lease.Left)/float64(r.lease.TTL))*width+0.5), 0), width)
	on, off := "█", "░"
	if u.ascii {
		on, off = "#", "."
	}
	return strings.Repeat(on, full) + strings.Repeat(off, width-full) +
		fmt.Sprintf(" %.0fs", r.lease.Left.Truncate(time.Second).Seconds())
}

// ago writes a duration for people, in its two largest units at most.
func ago(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	case d < 100*24*time.Hour:
		return fmt.Sprintf("%dd%02dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}

// drawFoot says what has just happened, or which keys there are.
func (u *ui) drawFoot(g *grid) {
	y := u.h - 1
	if y < 3 {
		return
	}
	switch {
	case u.mode == filtering:
		g.puts(0, y, part{"filter: ", bold}, part{u.filter, plain}, part{" ", invert},
			part{"  enter keeps it, esc shows all", dim})
	case u.mode == asking:
		g.put(0, y, g.w, "enter goes on, esc stops it", dim)
	case u.message != "":
		st := plain
		if u.bad {
			st = red | bold
		}
		g.put(0, y, g.w, u.message, st)
	default:
		x := 0
		for _, k := range []string{"q quit", "? help", "/ filter", "t transfer", "r resign", "d drain", "j k move"} {
			if x+len(k) > g.w {
				break
			}
			word, rest, _ := strings.Cut(k, " ")
			x = g.puts(x, y, part{word, bold}, part{" " + rest + "  ", dim})
		}
	}
}
