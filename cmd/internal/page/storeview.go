package page

import (
	"context"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/doctor"
	"github.com/primacy-go/primacy/driver"
)

// examiner keeps the last examination of the store, for all who look.
type examiner struct {
	run func(context.Context, func(doctor.Check)) *doctor.Report

	mu      sync.Mutex
	began   time.Time
	running bool
	checks  []doctor.Check
	report  *doctor.Report // of the last that is complete
	at      time.Time      // it was
	wg      sync.WaitGroup
}

const restBetween = time.Minute // from one examination to the next: each takes a lease and gives it back

// begin starts an examination, but where one runs or has just been. Changed is called with each
// finding.
func (x *examiner) begin(ctx context.Context, changed func()) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.run == nil || x.running || time.Since(x.began) < restBetween && !x.began.IsZero() {
		return false
	}
	x.running, x.began, x.checks = true, time.Now(), nil
	x.wg.Go(func() {
		rep := x.run(ctx, func(c doctor.Check) {
			x.mu.Lock()
			x.checks = append(x.checks, c)
			x.mu.Unlock()
			changed()
		})
		x.mu.Lock()
		x.running, x.report, x.at = false, rep, time.Now()
		x.mu.Unlock()
		changed()
	})
	return true
}

func (x *examiner) wait() { x.wg.Wait() }

// check is a finding as it is shown.
type check struct{ Level, Mark, Word, Topic, Found, Advice string }

func checkOf(c doctor.Check) check {
	s := check{Level: "good", Mark: "✓", Word: string(c.Level), Topic: c.Topic, Found: c.Found, Advice: c.Advice}
	switch c.Level {
	case driver.Warning:
		s.Level, s.Mark = "warn", "!"
	case driver.Failed:
		s.Level, s.Mark = "bad", "✗"
	}
	return s
}

// storeView is what is known of the store.
type storeView struct {
	Name, URL          string
	Warnings           []string
	Can, Cannot        []string
	Examines, Running  bool
	At                 time.Time // of the examination that is shown
	Checks             []check
	Warned, Failed     int
	Facts              []fact
	Command            string
	NotYet, ShowsCheck bool
	Seal               string
}

type fact struct{ Word, Value string }

// storeOf shows what the store can promise, and what an examination found.
func storeOf(_ context.Context, p *Page, _ url.Values) (content, error) {
	caps := p.o.Store.Caps()
	s := storeView{Name: caps.Store, URL: p.o.URL, Warnings: caps.Warnings, Examines: p.exam.run != nil && p.o.Actions,
		Command: command("doctor", ""), Seal: p.login.seal("examine")}
	s.Can, s.Cannot = doctor.Promises(caps, p.o.Drift)
	yes := map[bool]string{true: "yes", false: "no"}
	s.Facts = []fact{{"Shortest lease", lasting(caps.MinTTL)}, {"Longest lease", lasting(caps.MaxTTL)},
		{"Reads show the present", yes[caps.Linearizable]}, {"First come, first served", yes[caps.FIFO]},
		{"Changes are pushed", yes[caps.Push]}}
	p.exam.mu.Lock()
	s.Running, s.At = p.exam.running, p.exam.at
	checks := p.exam.checks
	if !s.Running && p.exam.report != nil {
		checks = p.exam.report.Checks
		s.Warned, s.Failed = p.exam.report.Count(driver.Warning), p.exam.report.Count(driver.Failed)
	}
	for _, c := range checks {
		s.Checks = append(s.Checks, checkOf(c))
	}
	report := p.exam.report
	p.exam.mu.Unlock()
	var at *time.Time // JSON has null before the first examination, as it has for that
	if !s.At.IsZero() {
		at = &s.At
	}
	s.NotYet, s.ShowsCheck = s.At.IsZero() && !s.Running, len(s.Checks) > 0
	return content{title: "Store", data: s, parts: []part{newPart("exam", "exam", s)},
		json: map[string]any{"store": s.Name, "url": s.URL, "can_promise": s.Can, "cannot_promise": s.Cannot,
			"examined_at": at, "examination": report}}, nil
}

func lasting(d time.Duration) string {
	if d == 0 {
		return "any"
	}
	return d.String()
}

// examine answers POST /ui/store/examine.
func examine(p *Page, w http.ResponseWriter, r *http.Request) error {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", "POST")
		return bad(http.StatusMethodNotAllowed, "This begins by a button", "%s is not served here", r.Method)
	}
	if !p.o.Actions { // it takes a lease
		return bad(http.StatusForbidden, "This page only shows", "start it with --ui-actions, or use %s",
			command("doctor", ""))
	}
	if err := p.form(w, r); err != nil {
		return err
	}
	if !p.login.sealed(r, "examine") {
		return errUnsealed
	}
	if p.o.Examine == nil {
		return bad(http.StatusNotImplemented, "No examination is offered here", "use %s", command("doctor", ""))
	}
	if p.exam.begin(p.ctx, p.feed.changed) {
		p.feed.changed()
	}
	http.Redirect(w, r, Path+"store", http.StatusSeeOther)
	return nil
}
