package page

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/handover"
	"github.com/primacy-go/primacy/cmd/internal/top"
)

// member is one candidate: all claims of an ID.
type member struct {
	ID             string // of the element
	Name, URL      string
	Host           string
	Leads, Waits   int
	Trouble        int // of what it leads
	Names          []claim
	More           int
	Lease          lease
	LeadsN, WaitsN []claim
	Asks           []ask
}

// claim is one of a member, with the address of its election.
type claim struct {
	Name  string `json:"name"`
	URL   string `json:"-"`
	Token string `json:"token"`
	Place string `json:"place"`
}

const namesShown = 5 // of what a member leads, in the list

// membersIn returns all members, those who lead most first.
func membersIn(entries []top.Entry) []*member {
	byID := map[string]*member{}
	of := func(s primacy.Entry) *member {
		m := byID[s.ID]
		if m == nil {
			m = &member{ID: idOf("m", s.ID), Name: s.ID, URL: memberURL(s.ID), Host: handover.HostOf(s.ID),
				Lease: leaseOf("ml", s.ID, nil)}
			byID[s.ID] = m
		}
		return m
	}
	for _, e := range entries {
		n := claim{Name: e.State.Name, URL: electionURL(e.State.Name)}
		holds := func(s primacy.Entry) {
			if s.ID == "" {
				return
			}
			m := of(s)
			m.Leads++
			if e.Trouble {
				m.Trouble++
			}
			n.Token, n.Place = tokenText(s.Token), "leads"
			if s.Slots != 0 {
				n.Place = "holds"
			}
			m.LeadsN = append(m.LeadsN, n)
			if e.State.Leader.Lease == s.Lease && e.Lease != nil {
				m.Lease = leaseOf("ml", s.ID, e.Lease)
			}
		}
		if e.State.Leader != nil {
			holds(*e.State.Leader)
		}
		for _, w := range e.State.Waiting {
			if w.Held {
				holds(w)
			} else if w.ID != "" {
				m := of(w)
				m.Waits++
				n.Token, n.Place = tokenText(w.Token), "waits"
				m.WaitsN = append(m.WaitsN, n)
			}
		}
	}
	var all []*member
	for _, m := range byID {
		slices.SortFunc(m.LeadsN, func(a, b claim) int { return cmp.Compare(a.Name, b.Name) })
		m.Names = m.LeadsN[:min(namesShown, len(m.LeadsN))]
		m.More = len(m.LeadsN) - len(m.Names)
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b *member) int {
		return cmp.Or(cmp.Compare(b.Leads, a.Leads), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// members shows who stands for anything.
func members(ctx context.Context, p *Page, q url.Values) (content, error) {
	prefix := q.Get("prefix")
	all := slices.DeleteFunc(membersIn(p.feed.picture().Entries), func(m *member) bool {
		return !strings.HasPrefix(m.Name, prefix)
	})
	shown, pg, err := paged(all, "members", q)
	if err != nil {
		return content{}, err
	}
	var names []string
	for _, m := range shown {
		for _, n := range m.Names {
			names = append(names, n.Name)
			break // its lease is that of all
		}
	}
	p.feed.show(ctx, names)
	s := staleOf(p.feed.picture())
	head := map[string]any{"All": len(all), "Stale": s, "Prefix": prefix}
	c := content{title: "Members", parts: []part{newPart("mhead", "mhead", head), newPart("pager", "pager", pg)}}
	type memberJSON struct {
		ID    string `json:"id"`
		Host  string `json:"host,omitempty"`
		Leads int    `json:"leads"`
		Waits int    `json:"waits"`
	}
	list := []memberJSON{}
	for _, m := range shown {
		flat := *m
		flat.LeadsN, flat.WaitsN, flat.Lease = nil, nil, lease{ID: m.Lease.ID}
		c.parts = append(c.parts, part{id: m.ID, template: "mrow", data: *m, list: "rows", key: keyOf(flat)},
			m.Lease.part())
		list = append(list, memberJSON{m.Name, m.Host, m.Leads, m.Waits})
	}
	c.data = map[string]any{"Head": head, "Pager": pg, "Rows": shown, "Prefix": prefix}
	c.json = map[string]any{"members": list, "page": pg.Page, "pages": pg.Pages, "stale": s.Is}
	return c, nil
}

// memberOf shows all that one candidate leads and waits for.
func memberOf(ctx context.Context, p *Page, q url.Values) (content, error) {
	id := q.Get("id")
	if id == "" {
		return content{}, bad(http.StatusBadRequest, "Which member?", "give id=ID")
	}
	pic := p.feed.picture()
	m := member{ID: idOf("m", id), Name: id, Host: handover.HostOf(id), Lease: leaseOf("ml", id, nil)}
	for _, one := range membersIn(pic.Entries) {
		if one.Name == id {
			m = *one
		}
	}
	if len(m.LeadsN) > 0 {
		p.feed.show(ctx, []string{m.LeadsN[0].Name})
		drain := ask{Word: "Drain", Command: command("drain", id)}
		if p.o.Actions {
			drain.URL = Path + "act?" + url.Values{"verb": {"drain"}, "member": {id}}.Encode()
		}
		m.Asks = []ask{drain}
	}
	s := staleOf(pic)
	requests := p.requests.of(ofMember(id))
	leaseless := m
	leaseless.Lease = lease{ID: m.Lease.ID}
	body := part{id: "member", template: "memberbody", data: map[string]any{"M": m, "Stale": s},
		key: keyOf([]any{leaseless, s})}
	return content{title: id, parts: []part{body, m.Lease.part(), newPart("requests", "requests", requests)},
		data: map[string]any{"Body": body.data, "Requests": requests, "Name": id},
		json: map[string]any{"id": id, "host": m.Host, "leads": m.LeadsN, "waits": m.WaitsN, "stale": s.Is}}, nil
}
