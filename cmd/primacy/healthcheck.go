package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/page"
	"github.com/primacy-go/primacy/cmd/internal/parallel"
	"github.com/primacy-go/primacy/cmd/internal/supervise"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/shards"
)

// keepLeading is what --on-unhealthy can say.
const keepLeading = "keep"

// candidacy are the flags of run that keep a candidate from leading: its health, and pauses.
type candidacy struct {
	health       string // a shell line, or a URL
	options      primacy.HealthOptions
	onUnhealthy  string
	ignorePauses bool
}

func (o *candidacy) flags(f *pflag.FlagSet) {
	f.StringVar(&o.health, "health", "",
		"a shell line, or an http(s) URL: while it fails, do not stand, and hand over to a candidate that is healthy")
	f.DurationVar(&o.options.Interval, "health-interval", 2*time.Second, "from one check to the next")
	f.DurationVar(&o.options.Timeout, "health-timeout", 2*time.Second, "a check that takes longer has failed")
	f.IntVar(&o.options.Fall, "health-fall", 3, "so many failures in a row: unhealthy")
	f.IntVar(&o.options.Rise, "health-rise", 5, "so many successes in a row: healthy again")
	f.StringVar(&o.onUnhealthy, "on-unhealthy", keepLeading,
		"if the leader is unhealthy and nobody else stands: keep leading, or resign")
	f.BoolVar(&o.ignorePauses, "ignore-pauses", false, "lead also while 'primacy pause --no-elections' forbids it")
}

// validate refuses what makes no sense. Given says whether somebody has set a flag.
func (o *candidacy) validate(given func(flag string) bool) error {
	if !slices.Contains([]string{keepLeading, "resign"}, o.onUnhealthy) {
		return fmt.Errorf("--on-unhealthy %q: use %s or resign", clean(o.onUnhealthy), keepLeading)
	}
	o.options.GiveUp = o.onUnhealthy != keepLeading
	switch {
	case o.health == "" && given("health"): // an empty variable, most likely: nothing would be checked
		return errors.New("--health is empty: give a shell line or a URL, or leave it out")
	case o.health == "":
		return nil
	case o.options.Interval < 100*time.Millisecond || o.options.Timeout < 50*time.Millisecond:
		return fmt.Errorf("--health-interval %v and --health-timeout %v: use at least 100ms and 50ms",
			o.options.Interval, o.options.Timeout)
	case o.options.Fall < 1 || o.options.Rise < 1:
		return fmt.Errorf("--health-fall %d and --health-rise %d: use 1 or more", o.options.Fall, o.options.Rise)
	}
	if o.isURL() {
		if u, err := url.Parse(o.health); err != nil || u.Host == "" {
			return fmt.Errorf("--health %s: give a URL with a host, such as http://localhost/healthz", clean(o.health))
		}
	}
	return nil
}

func (o *candidacy) isURL() bool {
	scheme, _, is := strings.Cut(o.health, "://")
	return is && (strings.EqualFold(scheme, "http") || strings.EqualFold(scheme, "https"))
}

// healthCheck makes the checks of --health, and tells what came of them.
type healthCheck struct {
	r      *runner
	client *http.Client
	member *shards.Group // nil: it is a candidate of one election

	mu        sync.Mutex
	h         *primacy.Health // nil before start, and where there is no --health
	sick      bool            // it has left a record that it is unhealthy, and none since that it is not
	waits     bool            // the same, that it waits for the end of a pause
	recording sync.WaitGroup
}

// start begins to check.
func (c *healthCheck) start() error {
	o := &c.r.candidacy
	if o.health == "" {
		return nil
	}
	check := c.command
	if o.isURL() {
		c.client = &http.Client{
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			Transport:     &http.Transport{DisableKeepAlives: true}, // each check proves a connection too
		}
		check = c.get
	}
	h, err := primacy.NewHealth(c.r.session, check, &o.options)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.h = h
	return err
}

func (c *healthCheck) health() *primacy.Health {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.h
}

// outputKept is how much of what a check says is kept, for people.
const outputKept = 200

// get asks the URL. A redirect is a success: whoever answers so works.
func (c *healthCheck) get(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.r.candidacy.health, nil)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", "primacy")
	resp, err := c.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, outputKept))
	if resp.StatusCode < 200 || resp.StatusCode > 399 {
		return errors.New(strings.TrimSpace(resp.Status + " " + firstLine(text)))
	}
	return err // a server that hangs, or breaks off, in the midst of its answer
}

// role is what the check finds in PRIMACY_ROLE. A process with shards leads while it has any.
func (c *healthCheck) role() string {
	switch {
	case c.r.current.Load() != nil:
		return c.r.role
	case c.member != nil && len(c.member.Owned()) > 0:
		return asLeader
	}
	return "standby"
}

// command runs the shell line under a guardian of its own: when ctx ends it is killed, with all it
// has started, and what it leaves behind when it ends is killed too.
func (c *healthCheck) command(ctx context.Context) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	said := make(chan []byte, 1)
	go func() {
		text, _ := io.ReadAll(io.LimitReader(r, outputKept))
		said <- text
		_, _ = io.Copy(io.Discard, r)
		_ = r.Close()
	}()
	cmd := c.r.hooks.outsideTerm(c.r.candidacy.health, map[string]string{eventEnv: "health", roleEnv: c.role()})
	cmd.Deadline = boottime.Now() + c.r.candidacy.options.Timeout + hookGrace + 10*time.Second
	cmd.Stdout, cmd.Stderr, cmd.NoJobControl, cmd.KillRemaining = w, w, true, true
	st, _, err := runLimited(ctx, c.r.supervisor, cmd, supervise.NoDeadline, 0, nil)
	_ = w.Close()
	if err != nil {
		return err
	}
	text := firstLine(<-said)
	switch {
	case ctx.Err() != nil:
		return failedCheck("stopped after --health-timeout "+c.r.candidacy.options.Timeout.String(), text)
	case st.Code != 0:
		return failedCheck(fmt.Sprintf("exit status %d", st.Code), text)
	}
	return nil
}

// failedCheck says how a check failed, and what it said.
func failedCheck(what, said string) error {
	if said != "" {
		what += ": " + said
	}
	return errors.New(what)
}

// firstLine returns the first line of what a check says, for people.
func firstLine(text []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	return clean(line)
}

// healthRecord is one entry of the journal of an election's health. It is for people, and decides
// nothing.
type healthRecord struct {
	ID      string        `json:"id"`
	Healthy bool          `json:"healthy"`
	Text    string        `json:"text,omitempty"`
	At      time.Time     `json:"at"`
	Token   primacy.Token `json:"token,omitzero"` // of the term that it leads
	Kept    bool          `json:"kept,omitempty"` // it leads on
	Why     string        `json:"why,omitempty"`  // it leads on: nobody else stands, or a pause
	// Pause, if not empty, says something else, and nothing of its health: that the candidate waits
	// for the end of a pause (waits) and does not stand, or no longer does (over).
	Pause string `json:"pause,omitempty"`
}

// What a record can say of a pause.
const (
	pauseWaits = "waits"
	pauseOver  = "over"
)

// Names of journals, and how many records they keep.
const (
	healthJournals = "health/"
	healthKept     = 100
)

// notified tells of an event of the session that has to do with health or pauses.
func (c *healthCheck) notified(ctx context.Context, ev primacy.Event) {
	r := c.r
	// At every event, as each renewal is one: that of a change may have been lost, or have come
	// before anybody listened, and then the process would have no shard for ever.
	if h := c.health(); h != nil && c.member != nil {
		c.member.SetReady(h.State().Healthy)
	}
	e := event{Event: ev.Kind.String(), Token: ev.Token, Text: ev.Text}
	record := healthRecord{ID: r.session.ID(), At: ev.At.UTC(), Text: ev.Text}
	if t := r.current.Load(); t != nil {
		record.Token = t.Token()
	}
	switch ev.Kind {
	case primacy.HealthChanged:
		healthy := ev.Cause == nil
		e.Healthy = &healthy
		if record.Healthy = healthy; healthy {
			r.say("the health check succeeds: %s may lead", clean(r.session.ID()))
		} else {
			r.say("the health check fails: %s", printable(ev.Text))
		}
		c.record(ctx, record)
	case primacy.UnhealthyLeads:
		r.say("unhealthy, and leads on: %s", printable(ev.Text))
		record.Kept, record.Why = true, ev.Text
		if last := c.health().State().Last; last != nil {
			record.Text = last.Error()
		}
		c.record(ctx, record)
	case primacy.ElectionPaused:
		r.say("NOT LEADING: %s; standing again when somebody may be elected", printable(ev.Text))
		record.Pause = pauseWaits
		c.record(ctx, record)
	case primacy.ElectionResumed:
		r.say("the pause is over: standing for %s again", clean(r.name))
		record.Pause, record.Text = pauseOver, ""
		c.record(ctx, record)
	default:
		return
	}
	r.report(e)
}

// record leaves a record for status, in the background. What cannot be written is left out.
func (c *healthCheck) record(ctx context.Context, h healthRecord) {
	j, ok := c.r.at.(driver.Journal)
	if !ok {
		return
	}
	value, err := json.Marshal(h)
	if err != nil {
		return
	}
	c.mu.Lock()
	if h.Pause == "" {
		c.sick = !h.Healthy
	} else {
		c.waits = h.Pause == pauseWaits
	}
	c.mu.Unlock()
	c.recording.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, releaseLimit)
		defer cancel()
		key := h.At.Format("20060102T150405.000Z") + "-" + rand.Text()[:8]
		_, _, _ = j.Append(ctx, healthJournals+c.r.name, driver.Record{Key: key, Value: value}, healthKept)
	})
}

// farewellLimit is how long the end of this process waits for its last records.
const farewellLimit = time.Second

// end takes back what the records say of a process that is about to end: status would go on showing
// it for a day.
func (c *healthCheck) end() {
	c.mu.Lock()
	sick, waits := c.sick, c.waits
	c.mu.Unlock()
	if !sick && !waits {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), farewellLimit)
	defer cancel()
	h := healthRecord{ID: c.r.session.ID(), At: time.Now().UTC(), Text: "ended"}
	if sick {
		h.Healthy = true
		c.record(ctx, h)
	}
	if waits {
		h.Healthy, h.Pause = false, pauseOver
		c.record(ctx, h)
	}
	c.recording.Wait()
}

// healthShown is for how long status shows who has said last that it is unhealthy, or that it waits
// for the end of a pause.
const healthShown = 24 * time.Hour

// outside returns who has said last, of those that stand or stood for name, that it is unhealthy,
// and who waits for the end of a pause.
func outside(ctx context.Context, st driver.Store, name string) (sick []healthRecord, waits []heldBack, err error) {
	j, ok := st.(driver.Journal)
	if !ok {
		return nil, nil, nil
	}
	records, err := j.Records(ctx, healthJournals+name, "", healthKept)
	if err != nil {
		return nil, nil, err
	}
	type subject struct {
		id      string
		ofPause bool
	}
	said := map[subject]bool{}
	for _, d := range records { // the newest first
		var h healthRecord
		if json.Unmarshal(d.Value, &h) != nil || time.Since(h.At) > healthShown {
			continue
		}
		of := subject{h.ID, h.Pause != ""}
		if said[of] {
			continue
		}
		said[of] = true
		switch {
		case h.Pause == pauseWaits:
			waits = append(waits, heldBack{h.ID, h.At})
		case h.Pause == "" && !h.Healthy:
			sick = append(sick, h)
		}
	}
	slices.Reverse(waits)
	return sick, waits, nil
}

// mostSick is of how many names it is read who is unhealthy.
const mostSick = 200

// allUnhealthy returns who has said last that it is unhealthy, by the name that it stands for.
func allUnhealthy(ctx context.Context, st driver.Store) (map[string][]page.Sick, error) {
	j, ok := st.(driver.Journal)
	if !ok {
		return nil, nil
	}
	journals, err := j.Journals(ctx, healthJournals)
	if err != nil {
		return nil, err
	}
	names := journals[:min(len(journals), mostSick)]
	found := make([][]healthRecord, len(names))
	parallel.Each(len(names), func(i int) {
		names[i] = strings.TrimPrefix(names[i], healthJournals)
		found[i], _, _ = outside(ctx, st, names[i])
	})
	all := map[string][]page.Sick{}
	for i, records := range found {
		for _, h := range records {
			all[names[i]] = append(all[names[i]], page.Sick{ID: h.ID, At: h.At, Text: h.Text})
		}
	}
	return all, ctx.Err()
}

// printOutside prints who is unhealthy, and who waits for the end of a pause. Whoever was killed
// since has not said so.
func printOutside(a *app, st primacy.State, sick []healthRecord, waits []heldBack) {
	for _, h := range sick {
		does := "does not stand"
		if st.Leader != nil && st.Leader.ID == h.ID {
			does = "leads on"
			if h.Why != "" {
				does += ", since " + printable(h.Why)
			}
		}
		fmt.Fprintf(a.stdout, "\nUNHEALTHY: %s said so at %s, and %s: %s\n", named(h.ID), clock(h.At), does,
			printable(h.Text))
	}
	for _, h := range waits {
		fmt.Fprintf(a.stdout, "\nNOT STANDING: %s, since %s: it waits for the end of the pause\n", named(h.ID),
			clock(h.Since))
	}
}
