package page

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/shown"
	"github.com/primacy-go/primacy/cmd/internal/top"
	"github.com/primacy-go/primacy/driver"
)

// rowsShown is how many elections stand on one page.
const rowsShown = 200

// row is an election or a lock in the list.
type row struct {
	ID, Name, URL   string
	Level           top.Level
	Mark, Health    string
	Trouble         bool
	Leader          string
	LeaderURL       string // empty: no member of that ID is known
	Others          int    // who hold it beside the leader
	Token           string
	Since, Before   time.Time // when it won; or, where that is not known, when it led already
	NobodySince     time.Time // zero: somebody leads, or it is not known
	Waiting         int
	Changes         string
	LastWhy, LastBy string // of the last term that ended
	Lease           lease
	Group           string // of a group: how many shards and members it has
	Paused          string // in a word or two; empty: it is not
	Sick            bool   // its leader has said that it is unhealthy
	NotRead         bool   // the store has not answered yet
}

// lease is how much is left of the leader's lease.
type lease struct {
	ID        string
	Known     bool
	Left, TTL int // seconds
	Percent   int
	Low       bool // its renewals fail
}

func leaseOf(kind, name string, r *driver.Remaining) lease {
	l := lease{ID: idOf(kind, name)}
	if r == nil || r.TTL <= 0 {
		return l
	}
	l.Known, l.Left, l.TTL = true, int(max(0, r.Left).Seconds()+0.5), int(r.TTL.Seconds()+0.5)
	l.Percent = min(100, max(0, int(100*r.Left/r.TTL)/5*5)) // in steps: each change is sent to all tabs
	l.Low = r.Left < r.TTL/3
	return l
}

func electionURL(name string) string { return Path + "election?" + url.Values{"name": {name}}.Encode() }

func memberURL(id string) string {
	if id == "" {
		return ""
	}
	return Path + "member?" + url.Values{"id": {id}}.Encode()
}

func rowOf(e top.Entry) row {
	st := e.State
	r := row{ID: idOf("e", st.Name), Name: st.Name, URL: electionURL(st.Name), Level: e.Level, Mark: e.Mark,
		Health: e.Health, Trouble: e.Trouble, Token: "–", Since: e.Since, Waiting: e.Waiting(),
		Changes: strconv.Itoa(e.Changes), LastWhy: e.Last.Why, LastBy: e.Last.By,
		Lease: leaseOf("l", st.Name, e.Lease)}
	if !e.Whole {
		r.Changes = fmt.Sprintf("≥ %d", e.Changes)
	}
	if l := st.Leader; l != nil {
		r.Leader, r.LeaderURL, r.Others = e.Leader(), memberURL(l.ID), e.Holders()-1
		if l.Token != 0 {
			r.Token = l.Token.String()
		}
		if e.Since.IsZero() {
			r.Before = e.Before
		}
	} else {
		r.Since, r.NobodySince = time.Time{}, e.Since
	}
	return r
}

// part is the row as a part of the view, but for the lease, which changes all the time.
func (r row) part() part {
	p := part{id: r.ID, template: "row", data: r, list: "rows"}
	r.Lease = lease{ID: r.Lease.ID}
	p.key = keyOf(r)
	return p
}

// part is the lease as a part of its own, which follows the one that it stands in.
func (l lease) part() part {
	p := newPart(l.ID, "lease", l)
	p.inside = true
	return p
}

// shownRow is a row with what pauses and checks say of it.
func shownRow(p *Page, i item) row {
	r := rowOfItem(i)
	if over := p.standing.over(r.Name); over != nil && (i.State.Leader == nil || i.State.Leader.Slots == 0) {
		if r.Paused = "paused"; over.NoElections {
			r.Paused = "no elections"
		}
	}
	for _, s := range p.standing.sickIn(i.Entry) {
		r.Sick = r.Sick || s.Leads
	}
	return r
}

// summary is what one wants to know first.
type summary struct {
	Trouble, All, Led, Waiting int
	Groups, Shards             int
	Prefix                     string
	Stale                      stale
	Unlooked                   int // names that may be deserted: their records were not looked at
}

// stale says that what is shown is not the present.
type stale struct {
	Is      bool
	AsOf    time.Time
	Nothing bool // the store has not answered yet
	Why     string
}

func staleOf(pic top.Picture) stale {
	if !pic.Stale(time.Now()) {
		return stale{}
	}
	s := stale{Is: true, AsOf: pic.AsOf, Nothing: pic.AsOf.IsZero(), Why: "The store has not answered for a while."}
	if pic.Err != nil {
		s.Why = fmt.Sprintf("The store does not answer: %v.", pic.Err)
	}
	return s
}

// pager leads to the other pages of a list.
type pager struct {
	First, Last, All   int
	Previous, Next     string // URLs; empty: there is none
	Page, Pages        int
	PreviousIs, NextIs int
}

// paged returns the page of a list that a query asks for.
func paged[T any](all []T, path string, q url.Values) ([]T, pager, error) {
	pages := max(1, (len(all)+rowsShown-1)/rowsShown)
	n := 1
	if s := q.Get("page"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil || n < 1 {
			return nil, pager{}, bad(http.StatusBadRequest, "There is no such page",
				"page=%q: give a number from 1 on", s)
		}
	}
	n = min(n, pages)
	from, to := (n-1)*rowsShown, min(n*rowsShown, len(all))
	pg := pager{First: from + 1, Last: to, All: len(all), Page: n, Pages: pages, PreviousIs: n - 1, NextIs: n + 1}
	at := func(n int) string {
		q := url.Values{"page": {strconv.Itoa(n)}, "prefix": q["prefix"]}
		if len(q["prefix"]) == 0 {
			q.Del("prefix")
		}
		return Path + path + query(q)
	}
	if n > 1 {
		pg.Previous = at(n - 1)
	}
	if n < pages {
		pg.Next = at(n + 1)
	}
	return all[from:to], pg, nil
}

// overview shows all elections and locks, the worst first.
func overview(ctx context.Context, p *Page, q url.Values) (content, error) {
	prefix := q.Get("prefix")
	c, s, err := listed(ctx, p, q, prefix)
	if err != nil {
		return c, err
	}
	c.title = "Overview"
	if s.Trouble > 0 {
		c.title = fmt.Sprintf("%d in trouble", s.Trouble)
	}
	return c, nil
}

func listed(ctx context.Context, p *Page, q url.Values, prefix string) (content, summary, error) {
	pic := p.feed.picture()
	all := folded(pic.Below(prefix))
	here, pg, err := paged(all, "", q)
	if err != nil {
		return content{}, summary{}, err
	}
	p.feed.show(ctx, namesOf(here))
	if now := p.feed.picture(); !now.Same(pic) { // histories were read
		pic, all = now, folded(now.Below(prefix))
		here, pg, _ = paged(all, "", q)
	}
	s := summary{All: len(all), Prefix: prefix, Stale: staleOf(pic), Unlooked: pic.Unlooked}
	for _, e := range all {
		if e.trouble() {
			s.Trouble++
		}
		if e.State.Leader != nil {
			s.Led++
		}
		if e.group != nil {
			s.Groups++
			s.Shards += e.group.shards
		} else {
			s.Waiting += e.Waiting()
		}
	}
	rows := make([]row, len(here))
	standing := p.standing.key() // before it is used: what changes meanwhile is seen the next time
	pauses := p.standing.pausedBelow(prefix)
	asks := overviewAsks(p, prefix)
	c := content{parts: []part{newPart("trouble", "trouble", s), newPart("summary", "summary", s),
		pauses.part(), newPart("pager", "pager", pg)}}
	list, groups := []top.Shown{}, []groupJSON{}
	for i, e := range here {
		rows[i] = shownRow(p, e)
		c.parts = append(c.parts, rows[i].part(), rows[i].Lease.part())
		j := e.Shown()
		j.Paused = shown.PauseOf(p.standing.over(j.Name))
		list = append(list, j)
		if e.group != nil {
			groups = append(groups, e.group.json())
		}
	}
	c.of = listedOf{pic: pic, names: namesOf(here), stale: s.Stale, standing: standing}
	c.data = map[string]any{"Summary": s, "Pager": pg, "Rows": rows, "Prefix": prefix,
		"Pauses": pauses, "Asks": asks}
	c.json = map[string]any{"as_of": pic.AsOf.UTC(), "stale": s.Stale.Is, "trouble": s.Trouble, "all": s.All,
		"not_looked_at": s.Unlooked,
		"page":          pg.Page, "pages": pg.Pages, "elections": list, "groups": groups,
		"pauses": p.standing.pausesJSON(prefix)}
	pauses.unknownIn(c.json)
	return c, s, nil
}

// listedOf is what a list was made of.
type listedOf struct {
	pic      top.Picture
	names    []string // on this page of it
	stale    stale
	standing string // the key of the pauses, and of who is unhealthy
}

// listedAgain returns a list as it is now, if it is made of the same as before.
func listedAgain(ctx context.Context, p *Page, before content) (content, bool) {
	was, ok := before.of.(listedOf)
	if !ok {
		return content{}, false
	}
	p.feed.show(ctx, was.names)
	pic := p.feed.picture()
	if !pic.Same(was.pic) || staleOf(pic) != was.stale || p.standing.key() != was.standing {
		return content{}, false
	}
	text := maps.Clone(before.json.(map[string]any)) // the old one may just be written to somebody
	text["as_of"] = pic.AsOf.UTC()
	before.json = text
	return before, true
}

// overviewAsks are what can be asked for of all that is listed.
func overviewAsks(p *Page, prefix string) []ask {
	switch {
	case prefix == "":
		return p.standing.pauseAsk("Pause everything", "")
	case strings.HasSuffix(prefix, "/") && primacy.CheckName(prefix) == nil:
		return p.standing.pauseAsk("Pause all of these", prefix)
	}
	return nil
}

func namesOf(all []item) []string {
	names := make([]string, len(all))
	for i, e := range all {
		names[i] = e.State.Name
	}
	return names
}

// entryOf finds an election in the picture; where nobody stands, it has its name only.
func entryOf(pic top.Picture, name string) top.Entry {
	if e := entryIn(pic.Entries, name); e.Health != "" {
		return e
	}
	return top.Entry{State: primacy.State{Name: name, AsOf: pic.AsOf}, Health: "nobody stands", Mark: "○",
		Level: top.Idle}
}
