package page

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/handover"
	"github.com/primacy-go/primacy/cmd/internal/shown"
	"github.com/primacy-go/primacy/driver"
)

// order is what is asked for, as a form says it: of one term, or of all terms of a member.
type order struct {
	verb   string // resign, transfer, drain, pause or resume
	name   string // of pause and resume: the scope
	token  primacy.Token
	member string
	terms  string // of drain: which terms the form showed; of pause and resume: what was paused
	to     string
	by     string
	reason string

	all         bool // of pause and resume: everything. Without it an empty name is none
	length      string
	noElections bool
}

// bound is what the seal of its form holds for: these terms and no later one.
func (o order) bound() string {
	return fmt.Sprintf("%q %q %d %q %q %t", o.verb, o.name, o.token, o.member, o.terms, o.all)
}

func orderOf(v url.Values) (o order, err error) {
	o = order{verb: v.Get("verb"), name: v.Get("name"), member: v.Get("member"), terms: v.Get("terms"), to: v.Get("to"),
		by: strings.TrimSpace(v.Get("by")), reason: strings.TrimSpace(v.Get("reason"))}
	switch o.verb {
	case "resign", "transfer":
		if err := primacy.CheckName(o.name); err != nil {
			return o, bad(http.StatusBadRequest, "This is no name of an election", "%v", err)
		}
		if err := o.token.UnmarshalText([]byte(v.Get("token"))); err != nil || o.token == 0 {
			return o, bad(http.StatusBadRequest, "This is no token", "token=%q: give that of the term that is to end",
				v.Get("token"))
		}
		o.member, o.terms = "", "" // the form does not send them back
	case "drain":
		o.name, o.to = "", ""
		if o.member == "" {
			return o, bad(http.StatusBadRequest, "Which member?", "give member=ID")
		}
	case "pause", "resume":
		o.member, o.to, o.all = "", "", v.Get("all") != ""
		o.length, o.noElections = strings.TrimSpace(v.Get("for")), v.Get("no-elections") != ""
		if o.all {
			o.name = ""
		} else if err := primacy.CheckName(o.name); err != nil {
			return o, bad(http.StatusBadRequest, "This is no name, and no prefix", "%v", err)
		}
	default:
		return o, bad(http.StatusNotFound, "There is no such request",
			"verb=%q: use resign, transfer, drain, pause or resume", o.verb)
	}
	for what, text := range map[string]string{"The reason": o.reason, "The name": o.by} {
		if len(text) > primacy.MaxName {
			return o, bad(http.StatusBadRequest, what+" is too long", "it has %d bytes, more than %d", len(text),
				primacy.MaxName)
		}
		if !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) {
			return o, bad(http.StatusBadRequest, what+" is no text", "%q: leave out what cannot be printed", text)
		}
	}
	return o, nil
}

// act answers /ui/act: by GET with a form that says what is about to happen, by POST with doing it.
func (p *Page) act(w http.ResponseWriter, r *http.Request) error {
	switch {
	case !p.o.Actions:
		return bad(http.StatusForbidden, "This page only shows",
			"start it with --ui-actions, or type the command that stands beside each request")
	case r.Method == http.MethodGet, r.Method == http.MethodHead:
		o, err := orderOf(r.URL.Query())
		if err != nil {
			return err
		}
		return p.confirm(w, r, o)
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", "GET, HEAD, POST")
		return bad(http.StatusMethodNotAllowed, "This is done by a form", "%s is not served here", r.Method)
	}
	if err := p.form(w, r); err != nil {
		return err
	}
	o, err := orderOf(r.PostForm)
	if err != nil {
		return err
	}
	if !p.login.sealed(r, o.bound()) {
		return errUnsealed
	}
	if who := p.o.Asker(r); who != "" {
		o.by = who // what the form says does not count
	}
	if o.by == "" {
		return bad(http.StatusBadRequest, "Who asks?", "give your name: it goes into the history")
	}
	if o.verb == "pause" || o.verb == "resume" {
		return doPause(p, w, r, o)
	}
	return p.do(w, r, o)
}

// confirmation is the form of an order.
type confirmation struct {
	Verb, Name, Member string
	Token, Terms, Seal string
	Leader             string
	Since              time.Time
	Successors         []string
	Successor          string // who leads next, as it stands
	To                 string
	By                 string
	Fixed              bool // who asks is known
	Moves, Stays       []claim
	Command            string
	Back               string
	Does, Effect       string
	Warning            string

	// Of pause and resume.
	Scope       string
	All         bool
	Was         *pausedOf // stands already
	Covers      int       // names that somebody leads
	Covered     []claim
	Effects     []Effect
	MoreEffects int
	Length      string
}

// confirm shows what is about to happen.
func (p *Page) confirm(w http.ResponseWriter, r *http.Request, o order) error {
	ctx, cancel := context.WithTimeout(r.Context(), p.o.Timeout)
	defer cancel()
	c := confirmation{Verb: o.verb, Name: o.name, Member: o.member, Token: o.token.String(), By: p.o.Asker(r), To: o.to}
	if c.Fixed = c.By != ""; !c.Fixed {
		c.By = p.o.Person
	}
	var err error
	switch o.verb {
	case "drain":
		err = p.confirmDrain(ctx, &c, &o)
	case "pause", "resume":
		err = confirmPause(ctx, p, &c, &o)
	default:
		err = p.confirmTerm(ctx, &c, o)
	}
	if err != nil {
		return err
	}
	c.Seal = p.login.seal(o.bound())
	return p.write(w, r, http.StatusOK, view{page: "confirm", once: true}, content{title: c.Does, data: c})
}

func (p *Page) confirmTerm(ctx context.Context, c *confirmation, o order) error {
	c.Back = electionURL(o.name)
	st, err := p.stateOf(ctx, o)
	if err != nil {
		return err
	}
	c.Leader = named(st.Leader.ID)
	for _, w := range st.Waiting {
		if w.ID != "" && w.ID != st.Leader.ID && w.Slots == 0 && !slices.Contains(c.Successors, w.ID) {
			c.Successors = append(c.Successors, w.ID)
		}
	}
	if past, err := p.records.of(ctx, o.name, o.token); err == nil && len(past) > 0 && past[0].Token == o.token {
		c.Since = past[0].From
	}
	c.Command = command("resign", o.name, "--token", c.Token)
	c.Does = fmt.Sprintf("Ask %s to resign %s", c.Leader, shown.Printable(o.name))
	switch {
	case o.verb == "transfer" && len(c.Successors) == 0:
		return bad(http.StatusConflict, "There is nobody to hand over to", "nobody else waits for %s under an ID of "+
			"his own", shown.Printable(o.name))
	case o.verb == "transfer" && c.To != "" && !slices.Contains(c.Successors, c.To):
		return bad(http.StatusConflict, named(c.To)+" does not wait any more", "go back and choose another")
	case o.verb == "transfer":
		c.Does = fmt.Sprintf("Hand %s over", shown.Printable(o.name))
		if c.To == "" {
			c.To = c.Successors[0]
		}
		c.Command = command("transfer", o.name, "--to", c.To, "--token", c.Token)
		c.Effect = "It stops its work, and the member that you choose leads under a new token. Others keep waiting."
	case len(c.Successors) == 0:
		c.Effect = "It stops its work. Nobody else waits: nobody leads then, or it leads again if it goes on waiting."
	default:
		c.Successor = c.Successors[0]
		c.Effect = "It stops its work, and the member that has waited longest leads under a new token."
	}
	if over := p.standing.over(p.namesOver(o.name)...); o.verb == "resign" && over != nil && over.NoElections {
		c.Warning = "It will be refused: nobody new is elected while this pause stands, and nobody would lead. " +
			"Transfer it instead: whom you name is elected."
	}
	return nil
}

// stateOf returns the line that an order is about, if the term that it means still leads.
func (p *Page) stateOf(ctx context.Context, o order) (primacy.State, error) {
	st, err := p.o.Session.Election(o.name).State(ctx)
	switch {
	case err != nil:
		return st, err
	case st.Leader == nil:
		return st, bad(http.StatusConflict, "The term under token "+o.token.String()+" is over", "nobody leads %s now",
			shown.Printable(o.name))
	case st.Leader.Token != o.token:
		return st, bad(http.StatusConflict, "The term under token "+o.token.String()+" is over",
			"%s leads %s now, under token %s: look again before you ask it", named(st.Leader.ID),
			shown.Printable(o.name), st.Leader.Token)
	case st.Leader.Slots != 0:
		return st, bad(http.StatusConflict, "A shared lock does not move", "its holders give %s back",
			shown.Printable(o.name))
	}
	return st, nil
}

func (p *Page) confirmDrain(ctx context.Context, c *confirmation, o *order) error {
	c.Back, c.Leader = memberURL(o.member), o.member
	states, terms, err := p.ledBy(ctx, o.member)
	if err != nil {
		return err
	}
	o.terms, c.Terms = terms, terms
	for _, st := range states {
		one := claim{Name: st.Name, URL: electionURL(st.Name), Token: st.Leader.Token.String()}
		if moves(st) {
			c.Moves = append(c.Moves, one)
		} else {
			c.Stays = append(c.Stays, one)
		}
	}
	if len(c.Moves) == 0 {
		return bad(http.StatusConflict, "There is nobody to hand over to", "nobody else waits for what %s leads",
			named(o.member))
	}
	c.Does = "Move all that " + named(o.member) + " leads"
	c.Effect = "Each is handed to the member that has waited longest for it, under a new token."
	c.Command = command("drain", o.member)
	return nil
}

// moves says whether a drain of its leader moves an election: somebody else waits for it.
func moves(st primacy.State) bool {
	return slices.ContainsFunc(st.Waiting, func(w primacy.Entry) bool { return w.Slots == 0 && w.ID != st.Leader.ID })
}

// ledBy returns what a member leads, and a word for exactly these terms and for which of them move.
func (p *Page) ledBy(ctx context.Context, id string) (led []primacy.State, terms string, err error) {
	all, err := p.o.Session.List(ctx, "")
	if err != nil {
		return nil, "", err
	}
	h := sha256.New()
	for _, st := range all {
		if st.Leader != nil && st.Leader.ID == id && st.Leader.Slots == 0 {
			led = append(led, st)
			fmt.Fprintf(h, "%q %d %t\n", st.Name, st.Leader.Token, moves(st))
		}
	}
	if len(led) == 0 {
		return nil, "", bad(http.StatusConflict, "There is nothing to move", "%s leads nothing now", named(id))
	}
	return led, fmt.Sprintf("%x", h.Sum(nil)[:16]), nil
}

// do asks the leader, and leads back to the view, which tells what comes of it.
func (p *Page) do(w http.ResponseWriter, r *http.Request, o order) error {
	ctx, cancel := context.WithTimeout(r.Context(), p.o.Timeout)
	defer cancel()
	m, err := handover.NewMover(p.o.Session, p.o.Store, o.reason, p.o.Wait, p.o.Timeout)
	if err != nil {
		return bad(http.StatusNotImplemented, "The store cannot carry a request", "%v", err)
	}
	m.By = o.by
	if o.verb == "drain" {
		states, terms, err := p.ledBy(ctx, o.member)
		if err != nil {
			return err
		}
		if terms != o.terms {
			return bad(http.StatusConflict, "What "+named(o.member)+" leads has changed", "go back and look again")
		}
		all := len(states)
		states = slices.DeleteFunc(states, func(st primacy.State) bool { return !moves(st) }) // as the form said
		m.Once = true
		d := p.requests.begin(ofMember(o.member), fmt.Sprintf("%s asked %s to hand over %d of the %d that it leads",
			shown.Printable(o.by), named(o.member), len(states), all))
		p.requests.do(p.ctx, p.feed, d, func(ctx context.Context) (string, error) {
			return drain(ctx, m, o.member,
				states)
		})
		http.Redirect(w, r, memberURL(o.member), http.StatusSeeOther)
		return nil
	}
	st, err := p.stateOf(ctx, o)
	if err != nil {
		return err
	}
	switch {
	case o.verb == "resign":
		o.to = ""
	case o.to == "":
		return bad(http.StatusBadRequest, "Hand over to whom?", "give to=ID; to give it to whoever is next, resign")
	}
	what := "to resign"
	if o.to != "" {
		what = "to hand over to " + named(o.to)
		waits := func(w primacy.Entry) bool { return w.ID == o.to && !w.Held }
		if !slices.ContainsFunc(st.Waiting, waits) {
			return bad(http.StatusConflict, named(o.to)+" does not wait any more", "go back and choose another")
		}
	}
	d := p.requests.begin(o.name, fmt.Sprintf("%s asked %s, which leads under token %s, %s", shown.Printable(o.by),
		named(st.Leader.ID), o.token, what))
	p.requests.do(p.ctx, p.feed, d, func(ctx context.Context) (string, error) { return one(ctx, m, st, o.to) })
	http.Redirect(w, r, electionURL(o.name), http.StatusSeeOther)
	return nil
}

// one asks the leader of one term, and says what became of it.
func one(ctx context.Context, m *handover.Mover, st primacy.State, to string) (string, error) {
	did := m.One(ctx, st, to)
	switch {
	case did.Err != nil:
		return "", did.Err
	case did.Now.Leader == nil:
		return "It has given it up; nobody leads.", nil
	case to != "" && did.Now.Leader.ID != to:
		return "", fmt.Errorf("it has given it up, but %s leads now, not %s", named(did.Now.Leader.ID), named(to))
	}
	return fmt.Sprintf("%s leads now, under token %s.", named(did.Now.Leader.ID), did.Now.Leader.Token), nil
}

func drain(ctx context.Context, m *handover.Mover, id string, states []primacy.State) (string, error) {
	moved := 0
	var left []string
	m.Drain(ctx, handover.Only(id), states, func(did handover.Move) {
		if did.Result == handover.Moved {
			moved++
		} else {
			left = append(left, fmt.Sprintf("%s (%s: %v)", shown.Printable(did.Name), did.Result, did.Err))
		}
	})
	slices.Sort(left)
	if len(left) > 0 {
		return "", fmt.Errorf("%d moved, %d did not: %s", moved, len(left), strings.Join(left, ", "))
	}
	return fmt.Sprintf("All %d have moved.", moved), nil
}

// request is one that was made by this page, and what came of it.
type request struct {
	At     time.Time
	What   string
	Done   bool
	Failed bool
	Result string

	about string
}

// requests are the latest ones.
type requests struct {
	mu  sync.Mutex
	all []*request
	wg  sync.WaitGroup
}

const (
	mostRequests = 200
	toldFor      = 10 * time.Minute
)

func (d *requests) begin(about, what string) *request {
	d.mu.Lock()
	defer d.mu.Unlock()
	one := &request{At: time.Now(), What: what, about: about}
	d.all = append(d.all, one)
	d.all = d.all[max(0, len(d.all)-mostRequests):]
	return one
}

// do carries a request out, whether or not somebody goes on looking.
func (d *requests) do(ctx context.Context, f *feed, one *request, act func(context.Context) (string, error)) {
	f.changed()
	d.wg.Go(func() {
		text, err := act(ctx)
		d.mu.Lock()
		one.Done, one.Result = true, text
		if err != nil {
			one.Failed, one.Result = true, "It has not: "+err.Error()+"."
			switch {
			case errors.Is(err, driver.ErrGone):
				one.Result = "That term is over."
			case errors.Is(err, handover.ErrGivenUp):
				one.Result = "Not moved: " + err.Error() + "."
			}
		}
		d.mu.Unlock()
		f.live.Hurry()
		f.changed()
	})
}

// of returns what was lately asked about a name, the newest first.
func (d *requests) of(about string) []request {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := []request{}
	for _, one := range slices.Backward(d.all) {
		if one.about == about && time.Since(one.At) < toldFor {
			all = append(all, *one)
		}
	}
	return all
}

func (d *requests) wait() { d.wg.Wait() }

// ofMember is what requests about a member are kept under. No election has such a name.
func ofMember(id string) string { return "\x00" + id }
