package page

import (
	"fmt"
	"net/url"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/top"
	"github.com/primacy-go/primacy/shards"
)

// group is a group of shards as the list has it: one row instead of one for each shard.
type group struct {
	line    top.Entry   // of the election with its name
	all     []top.Entry // its shards, of which each has a line of its own
	shards  int
	unknown bool // nobody runs it: shards is how many have been led in the last day
	owned   int
	members int
	worst   top.Entry // of its line and its shards
}

// item is a row of the list: an election, a lock, or a group.
type item struct {
	top.Entry
	group *group
}

func groupURL(name string) string { return Path + "group?" + url.Values{"name": {name}}.Encode() }

// folded puts the shards of each group in its place, which is that of the worst of them. Entries
// are the worst first. Where only some shards of a group are listed, without its own line, they
// stay.
func folded(entries []top.Entry) []item {
	groups := groupsIn(entries)
	all := make([]item, 0, len(entries))
	placed := map[string]bool{}
	for _, e := range entries {
		if groups == nil {
			all = append(all, item{Entry: e})
			continue
		}
		g := groups[e.State.Name]
		if of, n, ok := shards.ShardOf(e.State.Name); g == nil && ok && groups[of].has(n) {
			g = groups[of]
		}
		switch {
		case g == nil:
			all = append(all, item{Entry: e})
		case !placed[g.line.State.Name]:
			placed[g.line.State.Name] = true
			all = append(all, item{Entry: g.line, group: g})
		}
	}
	return all
}

// groupsIn returns the groups among entries, by name.
func groupsIn(entries []top.Entry) map[string]*group {
	groups := map[string]*group{}
	idle := map[string]bool{} // names that nobody leads: with shards they are groups that nobody runs
	for _, e := range entries {
		if n, ok := shards.GroupOf(e.State); ok {
			groups[e.State.Name] = &group{line: e, worst: e, shards: n, members: e.Holders() + e.Waiting()}
		} else if e.State.Leader == nil {
			idle[e.State.Name] = true
		}
	}
	for _, e := range entries {
		of, _, ok := shards.ShardOf(e.State.Name)
		if ok && idle[of] && groups[of] == nil {
			line := entryIn(entries, of)
			groups[of] = &group{line: line, worst: line, unknown: true, members: line.Waiting()}
		}
	}
	if len(groups) == 0 {
		return nil
	}
	for _, e := range entries {
		of, n, ok := shards.ShardOf(e.State.Name)
		g := groups[of]
		if !ok || !g.has(n) {
			continue
		}
		g.all = append(g.all, e)
		if g.unknown {
			g.shards++
		}
		if e.State.Leader != nil {
			g.owned++
		}
		if e.Trouble && !g.worst.Trouble {
			g.worst = e
		}
	}
	return groups
}

func (g *group) has(shard int) bool { return g != nil && (g.unknown || shard < g.shards) }

func entryIn(entries []top.Entry, name string) top.Entry {
	for _, e := range entries {
		if e.State.Name == name {
			return e
		}
	}
	return top.Entry{State: primacy.State{Name: name}}
}

// health is how a group is, as the worst of what it is made of.
func (g *group) health() (level top.Level, mark, words string, trouble bool) {
	switch free := g.shards - g.owned; {
	case g.line.State.Leader == nil:
		return g.line.Level, g.line.Mark, g.line.Health, g.line.Trouble
	case free > 0:
		return top.Bad, "○", fmt.Sprintf("%d without an owner", free), true
	}
	return g.worst.Level, g.worst.Mark, g.worst.Health, g.worst.Trouble
}

// row is the group as a row of the list.
func (g *group) row() row {
	r := rowOf(g.line)
	r.URL = groupURL(r.Name)
	r.Level, r.Mark, r.Health, r.Trouble = g.health()
	r.Waiting = 0
	r.Group = fmt.Sprintf("%s, %s", plural(g.shards, "shard", "shards"), plural(g.members, "member", "members"))
	return r
}

func rowOfItem(i item) row {
	if i.group != nil {
		return i.group.row()
	}
	return rowOf(i.Entry)
}

func (i item) trouble() bool {
	if i.group == nil {
		return i.Trouble
	}
	_, _, _, trouble := i.group.health()
	return trouble
}

// groupJSON is a group as the list has it in JSON.
type groupJSON struct {
	Name    string `json:"name"`
	Shards  int    `json:"shards"`
	Owned   int    `json:"owned"`
	Members int    `json:"members"`
	Health  string `json:"health"`
	Trouble bool   `json:"trouble"`
}

func (g *group) json() groupJSON {
	_, _, words, trouble := g.health()
	return groupJSON{g.line.State.Name, g.shards, g.owned, g.members, words, trouble}
}
