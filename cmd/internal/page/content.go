package page

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"hash/maphash"
	"net/url"
	"slices"
	"strings"
	"sync"
)

// content is a view at one instant: what HTML, the stream and JSON are made of.
type content struct {
	title   string
	page    string // whose templates its parts are made by
	data    any    // for the template of the whole
	parts   []part // what changes in it
	json    any
	version string // of all parts
	of      any    // what it was made of, where the view can tell that it would be the same again
}

// part is an element of a view that is replaced as a whole when it changes.
type part struct {
	id       string // of the element
	template string
	data     any
	list     string // the ID of the element whose children have an order; empty: it stays in its place
	key      string // of the data: what has the same one looks the same
	inside   bool   // it stands in the part before it, and is sent with it
	made     *made
}

// made is the HTML of a part. It is made once for all tabs, and kept until the data change.
type made struct {
	once sync.Once
	html string
	err  error
}

func newPart(id, template string, data any) part {
	return part{id: id, template: template, data: data, key: keyOf(data)}
}

// keyOf tells data apart. What html/template makes of the same data differs only by how long ago
// things are said to be, which the script keeps up to date itself.
func keyOf(data any) string {
	text, err := json.Marshal(data)
	if err != nil {
		panic(err) // our own types
	}
	return string(text)
}

func (p part) html(page string) (string, error) {
	p.made.once.Do(func() {
		var b bytes.Buffer
		if err := pages()[page].ExecuteTemplate(&b, p.template, p.data); err != nil {
			p.made.err = fmt.Errorf("part %s: %w", p.id, err)
		}
		p.made.html = strings.TrimSpace(b.String())
	})
	return p.made.html, p.made.err
}

// withVersion gives the content its version. What it has in common with the one before is not
// made again.
func (c content) withVersion(before content) content {
	old := make(map[string]*part, len(before.parts))
	for i := range before.parts {
		old[before.parts[i].id] = &before.parts[i]
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00", c.title)
	for i := range c.parts {
		p := &c.parts[i]
		p.made = &made{}
		if was := old[p.id]; was != nil && was.key == p.key && was.template == p.template {
			p.made, p.key = was.made, was.key
		}
	}
	for _, p := range c.parts {
		fmt.Fprintf(h, "%s\x00%s\x00%s\x00", p.id, p.list, p.key)
	}
	c.version = fmt.Sprintf("%x", h.Sum64())
	return c
}

// idOf is the ID of the element that stands for a name, which may have any letters.
func idOf(kind, name string) string {
	return fmt.Sprintf("%s-%x", kind, maphash.String(seed, name))
}

// seed is of this process: nobody else can find two names with the same ID.
var seed = maphash.MakeSeed()

// keptViews keep the newest content of each view that is open, so that a hundred tabs of it cost
// one.
type keptViews struct {
	mu  sync.Mutex
	all map[string]*keptView
}

type keptView struct {
	mu      sync.Mutex
	seen    uint64 // the number of the picture that it is made of
	made    bool
	content content
	err     error
	told    []told // the last contents, the newest last
}

// told is what a tab has that was given one version of a view.
type told struct {
	version string
	known   known
}

// mostTold is how many versions a tab may have that opens its stream: the next picture often comes
// between the page and its stream, and then the tab needs what has changed, not all.
const mostTold = 4

// of returns what a tab has that was given a version; a version that is not known is of nothing.
func (r *keptView) of(version string) known {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.told {
		if t.version == version {
			return t.known
		}
	}
	return known{}
}

// mostKept is how many views are kept: each query makes one of its own.
const mostKept = 200

func (r *keptViews) of(key string) *keptView {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil || len(r.all) >= mostKept && r.all[key] == nil {
		r.all = map[string]*keptView{}
	}
	if r.all[key] == nil {
		r.all[key] = &keptView{}
	}
	return r.all[key]
}

func (p *Page) keptOf(v view, q url.Values) *keptView {
	q.Del("seen")
	return p.keptViews.of(v.path + "?" + q.Encode())
}

// tell keeps what those have that are given the present content. The caller holds mu.
func (r *keptView) tell() {
	if n := len(r.told); n > 0 && r.told[n-1].version == r.content.version {
		return
	}
	r.told = append(r.told[max(0, len(r.told)-mostTold+1):], told{r.content.version, knownOf(r.content)})
}

// content returns a view as it is now.
func (p *Page) content(ctx context.Context, v view, q url.Values) (content, error) {
	p.feed.use(ctx)
	kept := p.keptOf(v, q)
	kept.mu.Lock()
	defer kept.mu.Unlock()
	if number := p.feed.number(); !kept.made || kept.seen != number {
		kept.made = false // if that panics, nobody is shown what was not made
		c, same := content{}, false
		if v.again != nil && kept.err == nil && kept.content.of != nil {
			c, same = v.again(ctx, p, kept.content)
		}
		if same {
			kept.content = c
		} else {
			c, kept.err = v.show(ctx, p, q)
		}
		kept.seen, kept.made = number, true
		if kept.err == nil && !same {
			c.page = v.page
			kept.content = c.withVersion(kept.content)
			kept.tell()
		}
		if ctx.Err() != nil {
			kept.made = false // it was cut short
		}
	}
	return kept.content, kept.err
}

// update is what a stream sends: the parts that have changed, and the order of lists that did.
type update struct {
	Title string              `json:"title,omitempty"` // if it is another
	Parts []updated           `json:"parts"`
	Lists map[string][]string `json:"lists,omitempty"`
}

type updated struct {
	ID   string `json:"id"`
	HTML string `json:"html"`
}

// known is what a tab has got.
type known struct {
	title string
	keys  map[string]string
	lists map[string][]string
}

// knownOf is what a tab knows that has got all of a content.
func knownOf(c content) known {
	k := known{title: c.title, keys: make(map[string]string, len(c.parts)), lists: map[string][]string{}}
	for _, p := range c.parts {
		k.keys[p.id] = p.key
		if p.list != "" {
			k.lists[p.list] = append(k.lists[p.list], p.id)
		}
	}
	return k
}

// since returns what a tab that knows k has to be told, and keeps that it has been. A tab that
// knows nothing is told all.
func (k *known) since(c content) (u update, news bool, err error) {
	now := knownOf(c)
	u.Parts = []updated{}
	if now.title != k.title {
		u.Title = now.title + " · Primacy"
	}
	sent := false // the part before was
	for _, p := range c.parts {
		before, ok := k.keys[p.id]
		if sent = !ok || before != p.key || p.inside && sent; !sent {
			continue
		}
		html, err := p.html(c.page)
		if err != nil {
			return u, false, err
		}
		u.Parts = append(u.Parts, updated{p.id, html})
	}
	for list := range k.lists {
		if _, ok := now.lists[list]; !ok {
			now.lists[list] = []string{}
		}
	}
	for list, ids := range now.lists {
		if !slices.Equal(ids, k.lists[list]) || k.keys == nil {
			if u.Lists == nil {
				u.Lists = map[string][]string{}
			}
			u.Lists[list] = ids
		}
	}
	*k = now
	return u, u.Title != "" || len(u.Parts) > 0 || len(u.Lists) > 0, nil
}
