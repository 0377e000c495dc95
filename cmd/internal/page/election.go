package page

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/shown"
	"github.com/primacy-go/primacy/cmd/internal/top"
	"github.com/primacy-go/primacy/shards"
)

// place is somebody in the queue of an election.
type place struct {
	ID       string // of the element
	Place    string
	Who, URL string
	Token    string
	Lease    string
	Value    string
	Note     string
	Ask      []ask // what he can be made to do
}

// ask is what can be asked of a leader: by the page, and as a command.
type ask struct {
	Word    string
	URL     string // of the form; empty: the page does not act
	Command string
}

// term is a row of the history.
type term struct {
	ID, Token      string
	Who, URL       string
	From, To       time.Time
	ToWord         string // instead of To
	Lasted, Gap    string
	Why, By        string
	Leads, Here    bool // it leads; it is the one that led at the instant that was asked about
	GapIs, Outside bool
}

const (
	termsShown = 100
)

// ranges are the windows of the timeline.
var ranges = []struct {
	word  string
	width time.Duration
}{{"1h", time.Hour}, {"24h", 24 * time.Hour}, {"7d", 7 * 24 * time.Hour}}

// asked is what the query of an election's view says.
type asked struct {
	name   string
	width  time.Duration
	window string
	at     *time.Time
	tz     string
}

// moved says that a view has another address, which always means the same.
type moved struct{ url string }

func (m *moved) Error() string { return "the view is at " + m.url }

func readQuery(q url.Values, now time.Time) (a asked, err error) {
	a.name = q.Get("name")
	if err := primacy.CheckName(a.name); err != nil {
		return a, bad(http.StatusBadRequest, "This is no name of an election", "%v", err)
	}
	a.window = q.Get("range")
	i := slices.IndexFunc(ranges, func(r struct {
		word  string
		width time.Duration
	}) bool {
		return r.word == a.window
	})
	if a.window != "" && i < 0 {
		return a, bad(http.StatusBadRequest, "There is no such range", "range=%q: use 1h, 24h or 7d", a.window)
	}
	if s := strings.TrimSpace(q.Get("at")); s != "" {
		a.tz = cmp.Or(q.Get("tz"), "UTC")
		zone, err := time.LoadLocation(a.tz)
		if err != nil || a.tz == "Local" {
			return a, bad(http.StatusBadRequest, "There is no such time zone", "tz=%q: use UTC, or one such as "+
				"Europe/Vienna", a.tz)
		}
		at, err := instantOf(s, zone, now)
		if err != nil {
			return a, bad(http.StatusBadRequest, "This is no time", "at=%v", err)
		}
		if y := at.UTC().Year(); y < 1970 || y > 9998 {
			return a, bad(http.StatusBadRequest, "This is no time", "at=%q: give one since 1970", s)
		}
		if at = at.UTC(); s != at.Format(time.RFC3339) {
			q := url.Values{"name": {a.name}, "at": {at.Format(time.RFC3339)}}
			if a.window != "" {
				q.Set("range", a.window)
			}
			return a, &moved{Path + "election?" + q.Encode()} // "03:12" is another instant tomorrow
		}
		a.at = &at
	}
	if i < 0 {
		for i = 0; i < len(ranges)-1 && (a.at == nil && i < 1 || a.at != nil && now.Sub(*a.at) > ranges[i].width); i++ {
		}
	}
	a.window, a.width = ranges[i].word, ranges[i].width
	return a, nil
}

// windowOf is the window of the timeline: the time up to now, or around the instant that was asked
// about if that is further back.
func (a asked) windowOf(now time.Time) (from, to time.Time) {
	if a.at != nil && now.Sub(*a.at) > a.width {
		return a.at.Add(-a.width / 2), a.at.Add(a.width / 2)
	}
	step := a.width / 360 // the drawing is not sent anew each second
	to = now.Truncate(step).Add(step)
	return to.Add(-a.width), to
}

// election shows one election or lock: who leads, who waits, and what was.
func election(ctx context.Context, p *Page, q url.Values) (content, error) {
	now := time.Now()
	a, err := readQuery(q, now)
	if err != nil {
		return content{}, err
	}
	p.feed.show(ctx, []string{a.name})
	pic := p.feed.picture()
	e := entryOf(pic, a.name)
	var token primacy.Token
	if e.State.Leader != nil {
		token = e.State.Leader.Token
	}
	past, err := p.records.of(ctx, a.name, token)
	noHistory := ""
	if err != nil {
		past = nil
	}
	switch {
	case errors.Is(err, primacy.ErrInvalid):
		noHistory = fmt.Sprintf("%s keeps no history.", p.o.Source.Store)
	case err != nil:
		noHistory = fmt.Sprintf("The history could not be read: %v.", err)
	}
	past = shown.WithoutElected(past, e.State.Leader != nil)
	r := rowOf(e)
	if s := staleOf(pic); s.Nothing {
		r.Health, r.Level, r.Mark, r.Trouble, r.NotRead = "not known", top.Idle, "?", false, true
	}
	if r.Since.IsZero() && len(past) > 0 && past[0].Token == token {
		r.Since = past[0].From
	}
	return p.electionOf(a, e, r, past, noHistory, staleOf(pic), now), nil
}

func (p *Page) electionOf(a asked, e top.Entry, r row, past []primacy.TermRecord, noHistory string, s stale,
	now time.Time,
) content {
	from, to := a.windowOf(now)
	tl := draw(spansOf(past, now, earlier(now, to)), from, to, a.at)
	var said *answer
	if a.at != nil {
		got := ledAt(past, *a.at, now)
		switch {
		case noHistory != "":
			got = answer{At: *a.at}.is("unknown", "It cannot be told here.", noHistory)
		case s.Is && a.at.After(s.AsOf):
			got = answer{At: *a.at}.is("unknown", "It is not known.", "Nothing has been read since then.")
		}
		said = &got
	}
	none := "No term is recorded. Locks have no history."
	if noHistory != "" {
		none = noHistory
	}
	terms := map[string]any{"All": termsOf(past, said), "None": none}
	line := map[string]any{"All": p.lineOf(e), "Nothing": s.Nothing}
	head := map[string]any{"Row": r, "Stale": s, "Asks": p.asksOf(e),
		"IsLock":      r.Leader != "" && len(past) == 0 && noHistory == "",
		"AnyoneLeads": r.Leader != ""}
	over := p.namesOver(a.name)
	pauses, sick := p.standing.pausedOver(over...), p.standing.sickIn(e)
	data := map[string]any{"Head": head, "Row": r, "Timeline": tl, "Terms": terms, "Line": line, "Answer": said,
		"NoHistory": noHistory, "Name": a.name, "Ranges": rangesOf(a), "At": a.at, "More": max(0, len(past)-termsShown),
		"All":     len(past) < termsRead,
		"Command": command("history", a.name), "Requests": p.requests.of(a.name), "Acts": p.o.Actions,
		"Watch": command("observe", a.name), "Pauses": pauses, "Sick": sick, "Group": groupOver(over, e.State)}
	leaseless := r
	leaseless.Lease = lease{ID: r.Lease.ID}
	headPart := newPart("head", "head", head)
	headPart.key = keyOf([]any{leaseless, s, head["Asks"], head["IsLock"]})
	c := content{title: a.name, data: data, parts: []part{
		headPart, r.Lease.part(), pauses.part(), newPart("sick", "sick", sick),
		newPart("answer", "answer", data["Answer"]), newPart("nohistory", "nohistory", noHistory),
		newPart("timeline", "timeline", tl), newPart("line", "line", line),
		newPart("requests", "requests", data["Requests"]),
		newPart("terms", "terms", terms),
	}}
	ej := e.Shown()
	ej.Health, ej.Trouble, ej.Paused = r.Health, r.Trouble, shown.PauseOf(p.standing.over(over...))
	j := map[string]any{"election": ej, "terms": shown.TermsOf(past), "stale": s.Is,
		"unhealthy": p.standing.sickOf(a.name)}
	if noHistory != "" {
		j["error"] = noHistory
	}
	pauses.unknownIn(j)
	if said != nil {
		j["at"], j["led"], j["token"], j["answer"] = said.At, said.Level, said.Token, said.Who+" "+said.Detail
	}
	c.json = j
	return c
}

// namesOver returns a name and, if it is a shard's, that of its group: a pause of either counts.
func (p *Page) namesOver(name string) []string {
	if of, _, ok := shards.ShardOf(name); ok {
		if _, is := shards.GroupOf(entryIn(p.feed.picture().Entries, of).State); is {
			return []string{name, of}
		}
	}
	return []string{name}
}

// groupOver leads from a shard to its group, and from the election of a group to its shards; nil:
// it is neither. Over is what namesOver returns for it.
func groupOver(over []string, st primacy.State) *navItem {
	if _, is := shards.GroupOf(st); is {
		return &navItem{Word: over[0], URL: groupURL(over[0]), Here: true}
	}
	if len(over) > 1 {
		return &navItem{Word: over[1], URL: groupURL(over[1])}
	}
	return nil
}

func rangesOf(a asked) (all []navItem) {
	for _, r := range ranges {
		q := url.Values{"name": {a.name}, "range": {r.word}}
		if a.at != nil {
			q.Set("at", a.at.Format(time.RFC3339))
		}
		all = append(all, navItem{r.word, Path + "election?" + q.Encode(), r.word == a.window})
	}
	return all
}

// lineOf is who leads and who waits, in order.
func (p *Page) lineOf(e top.Entry) (all []place) {
	add := func(where string, s primacy.Entry) {
		pl := place{ID: idOf("p", s.Lease+"/"+s.Token.String()+"/"+s.ID), Place: where, Who: s.ID, URL: memberURL(s.ID),
			Token: tokenText(s.Token), Lease: s.Lease, Value: shown.Clean(p.o.Value(e.State.Name, s)), Note: s.Note}
		if pl.Who == "" {
			pl.Who = "another program"
		}
		if s.Slots < 0 {
			pl.Place += ", shared"
		} else if s.Slots > 0 {
			pl.Place += fmt.Sprintf(", slot of %d", s.Slots)
		}
		if l := e.State.Leader; where != "leads" && !s.Held && l != nil && l.Slots == 0 && s.ID != "" && s.Slots == 0 &&
			s.ID != l.ID {
			pl.Ask = []ask{p.ask("Hand over to it", "transfer", e.State.Name, *l, s.ID)}
		}
		all = append(all, pl)
	}
	if l := e.State.Leader; l != nil {
		where := "leads"
		if l.Slots != 0 || !e.Elected && e.Last.Why == "" && e.Since.IsZero() {
			where = "leads or holds"
		}
		add(where, *l)
	}
	n := 0
	for _, w := range e.State.Waiting {
		if w.Held {
			add("holds", w)
			continue
		}
		n++
		add(fmt.Sprintf("waits, %d", n), w)
	}
	return all
}

// asksOf is what the leader can be asked for.
func (p *Page) asksOf(e top.Entry) []ask {
	l := e.State.Leader
	if l != nil && l.Slots != 0 {
		return nil
	}
	pauses := p.standing.pauseAsk("Pause", e.State.Name)
	if l == nil {
		return pauses
	}
	all := []ask{p.ask("Resign", "resign", e.State.Name, *l, ""), p.ask("Transfer", "transfer", e.State.Name, *l, "")}
	if l.ID != "" {
		drain := ask{Word: "Drain " + shown.Clean(l.ID), Command: command("drain", l.ID)}
		if p.o.Actions {
			drain.URL = Path + "act?" + url.Values{"verb": {"drain"}, "member": {l.ID}}.Encode()
		}
		all = append(all, drain)
	}
	return append(all, pauses...)
}

func (p *Page) ask(word, verb, name string, leader primacy.Entry, to string) ask {
	var flags []string
	q := url.Values{"verb": {verb}, "name": {name}, "token": {leader.Token.String()}}
	if to != "" {
		flags = []string{"--to", to}
		q.Set("to", to)
	} else if verb == "transfer" {
		flags = []string{"--to", "ID"}
	}
	if leader.Token != 0 {
		flags = append(flags, "--token", leader.Token.String())
	}
	a := ask{Word: word, Command: command(verb, name, flags...)}
	if p.o.Actions {
		a.URL = Path + "act?" + q.Encode()
	}
	return a
}

func tokenText(t primacy.Token) string {
	if t == 0 {
		return "–"
	}
	return t.String()
}

// termsOf makes the rows of the history, the newest first.
func termsOf(past []primacy.TermRecord, said *answer) (all []term) {
	for i := range past[:min(len(past), termsShown)] {
		r := &past[i]
		t := term{ID: "t-" + r.Token.String(), Token: r.Token.String(), Who: named(r.ID), URL: memberURL(r.ID),
			From: r.From, To: r.To, Lasted: "–", Gap: "–", By: r.By, Leads: r.Reason == primacy.Leads,
			Why: shown.Why(*r, time.UTC)}
		if d, known := r.Lasted(); known {
			t.Lasted = shown.Short(d)
		}
		if r.Gap != nil || r.GapMost != nil {
			t.Gap = strings.Replace(shown.GapBefore(*r), "<=", "≤", 1)
			t.GapIs = r.Overlap > 0 || r.Gap != nil && *r.Gap >= 100*time.Millisecond
		}
		switch {
		case t.Leads:
			t.ToWord, t.Why = "leads now", "–"
		case r.To.IsZero() && !r.ToBefore.IsZero():
			t.ToWord = "≤ " + utc(r.ToBefore)
		case r.To.IsZero():
			t.ToWord = "not known"
		}
		t.Here = said != nil && said.Token == t.Token
		all = append(all, t)
	}
	return all
}

// command is a line for a shell that does the same: a verb of the program, a name if it takes one,
// flags.
func command(verb, name string, flags ...string) string {
	words := []string{"primacy " + verb}
	all := slices.Clone(flags)
	switch {
	case strings.HasPrefix(name, "-"): // after -- it is no flag, and neither is anything else
		all = append(all, "--", name)
	case name != "":
		all = slices.Insert(all, 0, name)
	}
	for _, a := range all {
		words = append(words, word(a))
	}
	return strings.Join(words, " ")
}

// word is an argument as a shell reads it.
func word(a string) string {
	switch {
	case shown.Printable(a) != a:
		return escaped(a)
	case a == "" || a[0] == '=' || strings.Trim(a, // zsh expands what begins with =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:@%+=,") != "":
		return "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
	}
	return a
}

// escaped is a word for bash, zsh or ksh in which all can be seen: letters that turn the line
// around would show another command than the one that is copied.
func escaped(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\'' || r == '\\':
			b.WriteString("\\" + string(r))
		case shown.Printable(string(r)) != string(r):
			fmt.Fprintf(&b, "\\U%08x", r)
		default:
			b.WriteRune(r)
		}
	}
	return "$'" + b.String() + "'"
}
