package page

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/shown"
	"github.com/primacy-go/primacy/cmd/internal/top"
	"github.com/primacy-go/primacy/pause"
	"github.com/primacy-go/primacy/shards"
)

// shardGroups lists the groups of shards.
func shardGroups(ctx context.Context, p *Page, _ url.Values) (content, error) {
	var names []string
	rows, list := []row{}, []groupJSON{}
	pic := p.feed.picture()
	all := folded(pic.Entries)
	pauses := p.standing.pausedWhere(anyGroup(all))
	c := content{title: "Shards"}
	for _, i := range all {
		if i.group != nil {
			names = append(names, i.State.Name)
			rows = append(rows, shownRow(p, i))
			list = append(list, i.group.json())
		}
	}
	p.feed.show(ctx, names)
	s := staleOf(pic)
	head := map[string]any{"All": len(rows), "Stale": s}
	c.parts = append(c.parts, newPart("shead", "shead", head), pauses.part())
	for _, r := range rows {
		c.parts = append(c.parts, part{id: r.ID, template: "srow", data: r, list: "rows", key: keyOf(r)})
	}
	c.data = map[string]any{"Head": head, "Rows": rows, "Pauses": pauses}
	c.json = map[string]any{"groups": list, "stale": s.Is}
	return c, nil
}

// anyGroup says which pauses have to do with a group.
func anyGroup(all []item) func(one pause.Pause) bool {
	return func(one pause.Pause) bool {
		return slices.ContainsFunc(all, func(i item) bool { return i.group != nil && one.Covers(i.State.Name) })
	}
}

// owner is a member of a group, with its shards.
type owner struct {
	ID                  string // of the element
	Name, URL           string
	State, Level, Mark  string
	Owns, Quota, Weight int
	Left, Should        string // lengths of the bar, in percent
	Out, In             int    // moves under way
	Value               string
	Shards              []shardLink
	Open                bool // they are shown without being asked for
	order               int
}

// shardLink is a shard by its number.
type shardLink struct {
	Number, URL string
	To          string // who is to have it
}

// had answers who owns a shard.
type had struct{ Level, Who, Detail, URL string }

// vacancy is some shards without an owner for which the same will happen.
type vacancy struct {
	What   string
	Count  int
	Ranges string
	Shards []shardLink // the first of them
}

// transit is a move: under way, or in the last hour.
type transit struct {
	Shard          shardLink
	From, FromURL  string
	To, ToURL      string
	At             time.Time // of the end of a term
	Latest         bool      // nobody recorded it: At is the latest that it can have been
	Why, State, By string
	Token          string
}

const (
	openShards  = 64  // in a group: each member's are shown without being asked for
	vacantShown = 40  // shards without an owner that have a link each
	pastShown   = 200 // moves of the last hour
	lately      = time.Hour
)

func linkOf(groupName string, n int) shardLink {
	return shardLink{Number: fmt.Sprintf("%04d", n), URL: electionURL(shards.NameOf(groupName, n))}
}

// shardGroup shows who owns which shards of a group, and what moves.
func shardGroup(ctx context.Context, p *Page, q url.Values) (content, error) {
	name := q.Get("name")
	if err := primacy.CheckName(name); err != nil {
		return content{}, bad(http.StatusBadRequest, "This is no name of a group", "%v", err)
	}
	pic := p.feed.picture()
	g := groupsIn(pic.Entries)[name]
	if s := staleOf(pic); g == nil && s.Nothing {
		return content{}, bad(http.StatusServiceUnavailable, "It is not known", "%s", s.Why)
	}
	if g == nil {
		return content{}, bad(http.StatusNotFound, "There is no such group of shards",
			"nobody runs %s as a group, and no shard of it was led in the last day", shown.Printable(name))
	}
	names := []string{name}
	for _, e := range g.all {
		names = append(names, e.State.Name)
	}
	p.feed.show(ctx, names)
	pic = p.feed.picture() // with what was just read
	if now := groupsIn(pic.Entries)[name]; now != nil {
		g = now
	}
	st, err := statusOf(ctx, p, g)
	if err != nil {
		return content{}, err
	}
	return groupOf(p, g, st, pic, q)
}

// statusOf returns what the lines of a group say. A group that nobody runs has no members.
func statusOf(ctx context.Context, p *Page, g *group) (shards.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, p.o.Timeout)
	defer cancel()
	lines := make([]primacy.State, len(g.all))
	for i, e := range g.all {
		lines[i] = e.State
	}
	st, err := shards.StatusOf(ctx, p.o.Session, g.line.State, lines)
	if errors.Is(err, primacy.ErrNoLeader) {
		return shards.Status{Name: g.line.State.Name}, nil
	}
	return st, err
}

func groupOf(p *Page, g *group, st shards.Status, pic top.Picture, q url.Values) (content, error) {
	name := g.line.State.Name
	var asked *had
	if s := strings.TrimSpace(q.Get("shard")); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 || n >= len(st.Shards) {
			return content{}, bad(http.StatusBadRequest, "There is no such shard",
				"shard=%q: give a number from 0 to %d", s, len(st.Shards)-1)
		}
		got := whoHas(st, n)
		asked = &got
	}
	level, mark, words, _ := g.health()
	free := vacanciesOf(st)
	s := staleOf(pic)
	head := map[string]any{"Name": name, "Level": level, "Mark": mark, "Health": words, "Shards": g.shards,
		"Owned": g.owned, "Free": g.shards - g.owned, "Members": len(st.Members), "Moves": len(st.Moves),
		"Assigner": st.Assigner, "AssignerURL": electionURL(name), "Epoch": tokenText(st.Epoch), "Stale": s,
		"Unknown": g.unknown, "Asks": p.standing.pauseAsk("Pause", name)}
	pauses := p.standing.pausedWhere(func(one pause.Pause) bool {
		return one.Covers(name) || one.Covers(name+"/") || strings.HasPrefix(one.Scope, name+"/")
	})
	past, counts, unread := pastMoves(g, time.Now())
	moves := movesOf(name, st)
	history := map[string]any{"Counts": counts, "Rows": past[:min(len(past), pastShown)],
		"More": max(0, len(past)-pastShown), "Unread": unread}
	c := content{title: name, parts: []part{newPart("ghead", "ghead", head), pauses.part(),
		newPart("answer", "whohas", asked), newPart("free", "free", free), newPart("gmoves", "gmoves", moves),
		newPart("gpast", "gpast", history)}}
	owners := ownersOf(st)
	for _, o := range owners {
		c.parts = append(c.parts, part{id: o.ID, template: "orow", data: o, list: "rows", key: keyOf(o)})
	}
	c.data = map[string]any{"Name": name, "Head": head, "Pauses": pauses, "Answer": asked, "Free": free, "Moves": moves,
		"Past": history, "Rows": owners, "Shard": q.Get("shard"), "Most": len(st.Shards) - 1,
		"Command": command("shards", name)}
	c.json = map[string]any{"group": st, "stale": s.Is, "health": words}
	return c, nil
}

// whoHas answers who owns a shard.
func whoHas(st shards.Status, n int) had {
	o, at := st.Shards[n], linkOf(st.Name, n).URL
	if o.ID == "" && o.Token == 0 {
		detail := map[string]string{nobodyCan: "nobody can take it.", areTaken: " is to take it.",
			waitFor: " is being restarted, and it waits for that."}
		what, whom := vacant(st, o)
		return had{"gap", fmt.Sprintf("Nobody owns shard %04d:", n), whom + detail[what], at}
	}
	detail := "under token " + o.Token.String() + "."
	if o.Target != o.ID && o.Target != "" {
		detail += " It should go to " + named(o.Target) + "."
	}
	return had{"led", fmt.Sprintf("%s owns shard %04d,", named(o.ID), n), detail, at}
}

// What becomes of shards that nobody owns, the worst first.
const (
	nobodyCan = "and nobody can take them"
	areTaken  = "and are to be taken"
	waitFor   = "and wait for a member that is being restarted"
)

// vacant says what will become of a shard that nobody owns, and who is to have it.
func vacant(st shards.Status, o shards.Owner) (what, whom string) {
	i := slices.IndexFunc(st.Members, func(m shards.Member) bool { return m.ID == o.Target })
	switch {
	case o.Target == "" || i < 0:
		return nobodyCan, ""
	case st.Members[i].Away:
		return waitFor, named(o.Target)
	}
	return areTaken, named(o.Target)
}

// vacanciesOf tells of the shards that nobody owns, by what will become of them.
func vacanciesOf(st shards.Status) []vacancy {
	byWhat := map[string]*vacancy{nobodyCan: {}, areTaken: {}, waitFor: {}}
	numbers := map[string][]int{}
	for _, o := range st.Shards {
		if o.ID != "" || o.Token != 0 {
			continue
		}
		what, whom := vacant(st, o)
		v := byWhat[what]
		numbers[what] = append(numbers[what], o.Number)
		if v.Count++; len(v.Shards) < vacantShown {
			link := linkOf(st.Name, o.Number)
			link.To = whom
			v.Shards = append(v.Shards, link)
		}
	}
	all := []vacancy{}
	for _, what := range []string{nobodyCan, areTaken, waitFor} {
		if v := byWhat[what]; v.Count > 0 {
			v.What, v.Ranges = what, shown.Ranges(numbers[what])
			all = append(all, *v)
		}
	}
	return all
}

// ownersOf returns the members with their shards, those first with which something is not as usual.
func ownersOf(st shards.Status) []owner {
	all := make([]owner, len(st.Members))
	at := map[string]int{}
	most := 1
	for i, m := range st.Members {
		all[i] = owner{ID: idOf("o", m.ID), Name: m.ID, URL: memberURL(m.ID), State: shown.MemberState(m),
			Level: "good", Mark: "●", Owns: m.Owns, Quota: m.Quota, Weight: m.Weight,
			Value: shown.Clean(string(m.Value)), order: 3,
			Open: len(st.Shards) <= openShards}
		switch {
		case m.Away:
			all[i].Level, all[i].Mark, all[i].order = "warn", "↻", 1
		case m.Draining:
			all[i].Level, all[i].Mark, all[i].order = "warn", "→", 2
		case !m.Ready:
			all[i].Level, all[i].Mark, all[i].order = "bad", "✗", 0
		}
		at[m.ID] = i
		most = max(most, m.Owns, m.Quota)
	}
	for _, o := range st.Shards {
		if i, ok := at[o.ID]; ok && o.Token != 0 {
			all[i].Shards = append(all[i].Shards, linkOf(st.Name, o.Number))
		}
	}
	for _, m := range st.Moves {
		if i, ok := at[m.From]; ok {
			all[i].Out++
		}
		if i, ok := at[m.To]; ok {
			all[i].In++
		}
	}
	for i := range all {
		all[i].Left = percent(100 * float64(all[i].Owns) / float64(most))
		all[i].Should = percent(100 * float64(all[i].Quota) / float64(most))
	}
	slices.SortStableFunc(all, func(a, b owner) int { return a.order - b.order })
	return all
}

// movesOf returns the moves under way.
func movesOf(name string, st shards.Status) []transit {
	all := []transit{}
	for _, m := range st.Moves {
		all = append(all, transit{Shard: linkOf(name, m.Shard), From: named(m.From), FromURL: memberURL(m.From),
			To: named(m.To), ToURL: memberURL(m.To), Why: shown.Clean(string(m.Reason)), State: shown.MoveState(m),
			Token: tokenText(m.Token)})
	}
	return all
}

// pastMoves returns what has become of shards in the last hour, as their histories say, the newest
// first; how often for which reason; and of how many shards the history has not been read yet.
func pastMoves(g *group, now time.Time) (all []transit, counts []string, unread int) {
	often := map[string]int{}
	for _, e := range g.all {
		if !e.Read {
			unread++
		}
		_, n, _ := shards.ShardOf(e.State.Name)
		for i, t := range e.Terms {
			end := t.To
			if end.IsZero() { // a machine that lost power records none
				end = t.ToBefore
			}
			if t.Why == "" || end.IsZero() || now.Sub(end) > lately {
				continue
			}
			one := transit{Shard: linkOf(g.line.State.Name, n), From: named(t.ID), FromURL: memberURL(t.ID), At: end,
				Latest: t.To.IsZero(), Why: t.Why, By: t.By, Token: t.Token.String()}
			if i > 0 && e.Terms[i-1].ID != "" {
				one.To, one.ToURL = named(e.Terms[i-1].ID), memberURL(e.Terms[i-1].ID)
			}
			all = append(all, one)
			often[kindOf(t)]++
		}
	}
	slices.SortFunc(all, func(a, b transit) int {
		return cmp.Or(b.At.Compare(a.At), cmp.Compare(a.Shard.Number, b.Shard.Number))
	})
	kinds := make([]string, 0, len(often))
	for k := range often {
		kinds = append(kinds, k)
	}
	slices.SortFunc(kinds, func(a, b string) int { return cmp.Or(often[b]-often[a], cmp.Compare(a, b)) })
	for _, k := range kinds {
		counts = append(counts, fmt.Sprintf("%d %s", often[k], k))
	}
	return all, counts, unread
}

// kindOf says in a word or two what ended a term of a shard.
func kindOf(t top.Term) string {
	if reason, is := strings.CutPrefix(t.Text, "shards: "); is && t.Reason == primacy.Transferred {
		return "for " + shown.Clean(reason)
	}
	return shown.Told(t.Reason)
}
