package page

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/cron"
	"github.com/primacy-go/primacy/cmd/internal/shown"
	"github.com/primacy-go/primacy/cmd/internal/top"
	"github.com/primacy-go/primacy/pause"
)

// Sick is a candidate that has said that it is unhealthy.
type Sick struct {
	ID   string    `json:"id"`
	At   time.Time `json:"at"` // it said so last
	Text string    `json:"text"`
}

// Effect is what the end of a pause means for one name.
type Effect struct{ Name, Effect string }

// standing is what operators have paused, and who is unhealthy, as it was read with the last list.
type standing struct {
	o Options

	mu     sync.Mutex
	pauses []pause.Pause
	err    error
	sick   map[string][]Sick
	sickAt time.Time
}

const sickEvery = 5 * time.Second // each name of whose health anything was said costs a read

// read reads the pauses, and now and then who is unhealthy. It is the Paused of a top.Source, which
// reads it beside the list while somebody looks.
func (s *standing) read(ctx context.Context) ([]string, error) {
	all, err := pause.List(ctx, s.o.Store)
	s.mu.Lock()
	s.pauses, s.err = all, err
	due := s.o.Sick != nil && time.Since(s.sickAt) >= sickEvery
	s.mu.Unlock()
	if due {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if sick, sickErr := s.o.Sick(ctx); sickErr == nil {
			s.mu.Lock()
			s.sick, s.sickAt = sick, time.Now()
			s.mu.Unlock()
		}
	}
	return nil, err
}

func (s *standing) now() ([]pause.Pause, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pauses, s.err
}

// key tells what stands at present apart from what stood before. A pause may end by itself.
func (s *standing) key() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := slices.DeleteFunc(slices.Clone(s.pauses), func(one pause.Pause) bool { return !one.StandsAt(time.Now()) })
	return keyOf([]any{now, len(s.pauses), fmt.Sprint(s.err), s.sick})
}

func (s *standing) sickOf(name string) []Sick {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sick[name]
}

// over returns the strongest pause that one of the names is under, nil if there is none.
func (s *standing) over(names ...string) *pause.Pause {
	all, _ := s.now()
	return pause.Strongest(all, names...)
}

// pausedOf is a pause as it is shown.
type pausedOf struct {
	What        string
	By, Reason  string
	Since       time.Time
	Until       time.Time // zero: until it is resumed
	NoElections bool
	Asks        []ask
}

// paused is what a view shows of the pauses that have to do with it.
type paused struct {
	All []pausedOf
	Err string
}

// part of the view, which stands on it under one ID.
func (d paused) part() part { return newPart("pauses", "pauses", d) }

func (s *standing) pausedOf(one pause.Pause) pausedOf {
	resume := ask{Word: "Resume", Command: pauseCommand(one.Scope, "resume")}
	if s.o.Actions {
		resume.URL = pauseURL(one.Scope, "resume")
	}
	return pausedOf{What: shown.Printable(one.ForScope()), By: one.By, Reason: one.Reason, Since: one.Since,
		Until: one.Until, NoElections: one.NoElections, Asks: []ask{resume}}
}

// pausedWhere returns the pauses that a view has to do with.
func (s *standing) pausedWhere(concerns func(pause.Pause) bool) (d paused) {
	all, err := s.now()
	if err != nil && !errors.Is(err, pause.ErrNoJournal) {
		d.Err = err.Error()
	}
	for _, one := range all {
		if one.StandsAt(time.Now()) && concerns(one) {
			d.All = append(d.All, s.pausedOf(one))
		}
	}
	return d
}

// unknownIn says in the JSON of a view that what is paused is not known: no pause there does not
// say that there is none.
func (d paused) unknownIn(view any) {
	if d.Err != "" {
		view.(map[string]any)["pauses_error"] = d.Err
	}
}

// pausedOver returns the pauses that cover one of the names.
func (s *standing) pausedOver(names ...string) paused {
	return s.pausedWhere(func(one pause.Pause) bool { return slices.ContainsFunc(names, one.Covers) })
}

// pausedBelow returns the pauses that say something about names with that prefix.
func (s *standing) pausedBelow(prefix string) paused {
	return s.pausedWhere(func(one pause.Pause) bool { return shown.Concerns(one, prefix) })
}

// pausesJSON are the pauses that say something about names with that prefix, as status writes them.
func (s *standing) pausesJSON(prefix string) []*shown.Pause {
	out := []*shown.Pause{}
	all, _ := s.now()
	for _, one := range all {
		if shown.Concerns(one, prefix) {
			out = append(out, shown.PauseOf(&one))
		}
	}
	return out
}

// pauseAsk is what can be asked for: to pause a name, all below a prefix, or with "" everything.
func (s *standing) pauseAsk(word, scope string) []ask {
	if s.pausable(scope) != nil {
		return nil
	}
	a := ask{Word: word, Command: pauseCommand(scope, "pause", "--reason", "WHY")}
	if s.o.Actions {
		a.URL = pauseURL(scope, "pause")
	}
	return []ask{a}
}

// pausable says why a scope cannot be paused, nil if it can be.
func (s *standing) pausable(scope string) error {
	if s.o.Pausable == nil {
		return nil
	}
	if err := s.o.Pausable(scope); err != nil {
		return bad(http.StatusConflict, "This cannot be paused", "%v", err)
	}
	return nil
}

// pauseURL is where a scope is paused or resumed.
func pauseURL(scope, verb string) string {
	q := url.Values{"verb": {verb}, "name": {scope}}
	if scope == "" {
		q = url.Values{"verb": {verb}, "all": {"yes"}}
	}
	return Path + "act?" + q.Encode()
}

// sickness is what a view shows of a candidate that is unhealthy.
type sickness struct {
	Who, URL, Does, Text string
	At                   time.Time
	Leads                bool
}

// sickIn tells who of an election is unhealthy, and what that means for it.
func (s *standing) sickIn(e top.Entry) (all []sickness) {
	for _, said := range s.sickOf(e.State.Name) {
		one := sickness{Who: named(said.ID), URL: memberURL(said.ID), Does: "does not stand", Text: said.Text,
			At: said.At}
		if l := e.State.Leader; l != nil && l.ID == said.ID {
			one.Does, one.Leads = "leads on", true
		}
		all = append(all, one)
	}
	return all
}

// scopeOf returns where the pauses of a scope are seen.
func scopeOf(scope string) string {
	switch {
	case scope == "":
		return Path
	case strings.HasPrefix(scope, cron.Prefix):
		return Path + "cron"
	case strings.HasSuffix(scope, "/"):
		return Path + "?" + url.Values{"prefix": {scope}}.Encode()
	}
	return electionURL(scope)
}

// mostCovered is how many names, or effects, a form lists.
const mostCovered = 20

// standingOf returns the pause of exactly a scope as the store has it now, and a word for it.
func standingOf(ctx context.Context, p *Page, scope string) (*pause.Pause, string, error) {
	all, err := pause.List(ctx, p.o.Store)
	if err != nil {
		return nil, "", err
	}
	i := slices.IndexFunc(all, func(one pause.Pause) bool { return one.Scope == scope })
	if i < 0 {
		return nil, "none", nil
	}
	return &all[i], all[i].Since.UTC().Format(time.RFC3339Nano) + " " + all[i].By, nil
}

// confirmPause shows what is about to be paused, or resumed.
func confirmPause(ctx context.Context, p *Page, c *confirmation, o *order) error {
	c.Back, c.Scope, c.All = scopeOf(o.name), pause.Pause{Scope: o.name}.ForScope(), o.all
	stands, word, err := standingOf(ctx, p, o.name)
	if err != nil {
		return err
	}
	o.terms, c.Terms = word, word
	if stands != nil {
		was := p.standing.pausedOf(*stands)
		c.Was = &was
	}
	scope := shown.Printable(c.Scope)
	if o.verb == "resume" {
		if stands == nil {
			return bad(http.StatusConflict, scope+" is not paused", "its pause is over, or somebody has resumed it")
		}
		c.Does, c.Command = "Resume "+scope, pauseCommand(o.name, "resume")
		if p.o.Effects != nil {
			effects, err := p.o.Effects(ctx, *stands)
			if err != nil {
				return err
			}
			c.Effects = effects[:min(len(effects), mostCovered)]
			c.MoreEffects = len(effects) - len(c.Effects)
		}
		return nil
	}
	if err := p.standing.pausable(o.name); err != nil {
		return err
	}
	c.Does, c.Command = "Pause "+scope, pauseCommand(o.name, "pause", "--reason", "WHY")
	c.Length = strings.TrimSuffix(strings.TrimSuffix(pause.Default.String(), "0s"), "0m")
	p.feed.use(ctx)
	for _, e := range p.feed.picture().Entries {
		l := e.State.Leader
		if l != nil && l.Slots == 0 && (pause.Pause{Scope: o.name}).Covers(e.State.Name) {
			if c.Covers++; len(c.Covered) < mostCovered {
				c.Covered = append(c.Covered, claim{Name: e.State.Name, URL: electionURL(e.State.Name),
					Token: tokenText(l.Token)})
			}
		}
	}
	return nil
}

// pauseCommand is the command of a pause or its end.
func pauseCommand(scope, verb string, flags ...string) string {
	if scope == "" {
		return strings.Join(append([]string{"primacy", verb, "--all"}, flags...), " ")
	}
	return command(verb, scope, flags...)
}

// doPause pauses, or resumes, and leads back to where that is seen.
func doPause(p *Page, w http.ResponseWriter, r *http.Request, o order) error {
	ctx, cancel := context.WithTimeout(r.Context(), p.o.Timeout)
	defer cancel()
	_, word, err := standingOf(ctx, p, o.name)
	if err != nil {
		return err
	}
	if word != o.terms {
		return bad(http.StatusConflict, "What is paused has changed", "go back and look again")
	}
	if o.verb == "resume" {
		_, err = pause.Resume(ctx, p.o.Store, o.name, o.by)
	} else {
		if err := p.standing.pausable(o.name); err != nil {
			return err
		}
		until, parsed := shown.PauseUntil(o.length, time.Now())
		if parsed != nil {
			return bad(http.StatusBadRequest, "For how long?", "%v", parsed)
		}
		_, err = pause.Set(ctx, p.o.Store, pause.Pause{Scope: o.name, By: o.by, Reason: o.reason, Until: until,
			NoElections: o.noElections})
	}
	switch {
	case errors.Is(err, pause.ErrInvalid):
		return bad(http.StatusBadRequest, "This cannot be paused so", "%v", err)
	case errors.Is(err, pause.ErrNotPaused):
		return bad(http.StatusConflict, "It is not paused", "%v", err)
	case errors.Is(err, pause.ErrNoJournal):
		return bad(http.StatusNotImplemented, "Nothing can be paused here", "%v", err)
	case ctx.Err() != nil:
		return bad(http.StatusServiceUnavailable, "It is not known whether that was done",
			"the store has not confirmed it: look again before you ask once more")
	case err != nil:
		return err
	}
	_, _ = p.standing.read(ctx) // whoever is led back sees it
	p.feed.live.Hurry()
	p.feed.changed()
	http.Redirect(w, r, scopeOf(o.name), http.StatusSeeOther)
	return nil
}
