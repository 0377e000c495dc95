//go:build linux

package page

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/programtest"
	"github.com/primacy-go/primacy/internal/servertest"
	"github.com/primacy-go/primacy/open"
	"github.com/primacy-go/primacy/pause"
	"github.com/primacy-go/primacy/shards"
)

// world is a store, those who stand in it, and a server of the page.
type world struct {
	testing.TB
	url   string // of the store
	store driver.Store
	site  string // where the page is, with its path
	pid   int    // of the server
}

func newWorld(t testing.TB, flags ...string) *world {
	t.Helper()
	w := newStore(t)
	w.serves(flags...)
	return w
}

func newStore(t testing.TB) *world {
	t.Helper()
	programtest.Needs(t, "chromium")
	w := &world{TB: t, url: "etcd://user:secret@" + etcdtest.Start(t, etcdtest.Options{}).Addr()}
	w.url = strings.Replace(w.url, "user:secret@", "", 1)
	st, err := open.Open(context.Background(), w.url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	w.store = st
	return w
}

// start runs the program until the test ends, and returns its process and what it prints.
func (w *world) start(args ...string) (*exec.Cmd, *bufio.Scanner) {
	w.Helper()
	bin, err := programtest.Program()
	if err != nil {
		w.Fatal(err)
	}
	cmd := exec.Command(bin, args...)
	cmd.Env = append(os.Environ(), "PRIMACY_STORE="+w.url, "XDG_RUNTIME_DIR="+w.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		w.Fatal(err)
	}
	cmd.Stderr = w.Output()
	if err := cmd.Start(); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		late := time.AfterFunc(limit, func() { _ = cmd.Process.Kill() })
		defer late.Stop()
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait()
	})
	return cmd, bufio.NewScanner(out)
}

// serves starts `primacy serve --ui`.
func (w *world) serves(flags ...string) {
	w.Helper()
	addr := net.JoinHostPort("127.0.0.1", servertest.FreePort(w))
	cmd, _ := w.start(append([]string{"serve", "--ui", "--socket", "none", "--listen", addr, "--id", "page"},
		flags...)...)
	w.pid, w.site = cmd.Process.Pid, "http://"+addr+"/ui/"
	w.eventually("the page is served", func() bool {
		resp, err := http.Get(w.site)
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == 200
	})
}

func (w *world) eventually(what string, ok func() bool) {
	w.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			w.Fatalf("waited %v for: %s", limit, what)
		}
	}
}

// at is the address of a view.
func (w *world) at(view string, query ...string) string {
	q := url.Values{}
	for i := 0; i < len(query); i += 2 {
		q.Set(query[i], query[i+1])
	}
	if len(q) == 0 {
		return w.site + view
	}
	return w.site + view + "?" + q.Encode()
}

func (w *world) session(id string) *primacy.Session {
	w.Helper()
	s, err := primacy.NewSession(w.store, &primacy.Options{ID: id, TTL: time.Minute,
		// no lease is lost on a busy machine
		Overrun: primacy.OverrunWait})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = s.Close(ctx)
	})
	return s
}

// stand has a member stand for names, one after the other, and do what it is asked to.
func (w *world) stand(s *primacy.Session, value string, names ...string) {
	w.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	w.Cleanup(func() { cancel(); all.Wait() })
	for _, name := range names {
		all.Go(func() {
			_ = s.Candidate(name, &primacy.CampaignOptions{Value: []byte(value)}).Run(ctx, func(ctx context.Context,
				_ *primacy.Term) error {
				<-ctx.Done()
				return nil
			})
		})
		w.eventually(s.ID()+" stands for "+name, func() bool {
			st, err := s.Election(name).State(ctx)
			in := func(e primacy.Entry) bool { return e.ID == s.ID() }
			if err != nil || st.Leader != nil && in(*st.Leader) {
				return err == nil
			}
			for _, e := range st.Waiting {
				if in(e) {
					return true
				}
			}
			return false
		})
	}
}

func (w *world) leader(name string) primacy.Entry {
	w.Helper()
	s := w.session("reader")
	l, err := s.Election(name).Leader(context.Background())
	if err != nil {
		w.Fatal(err)
	}
	return l
}

// past is a term in the history, as the store keeps it.
type past struct {
	V         int       `json:"v"`
	ID        string    `json:"id"`
	From      time.Time `json:"from"`
	To        time.Time `json:"to,omitzero"`
	Why       string    `json:"why,omitempty"`
	By        string    `json:"by,omitempty"`
	Text      string    `json:"text,omitempty"`
	Successor string    `json:"heir,omitempty"`
	Paused    int64     `json:"paused_ms,string,omitempty"`
}

// remembers writes terms of an election into the store, the oldest first, under the tokens 2, 4, 6…
func (w *world) remembers(name string, terms ...past) {
	w.Helper()
	for i, p := range terms {
		p.V = 1
		w.record("terms/"+name, fmt.Sprintf("%020d", 2*(i+1)), p)
	}
}

func (w *world) record(journal, key string, value any) {
	w.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		w.Fatal(err)
	}
	w.eventually("the record "+journal+" "+key, func() bool { // a call whose answer is lost is repeated
		_, _, err := w.store.(driver.Journal).Append(context.Background(), journal, driver.Record{Key: key,
			Value: text},
			1000)
		return err == nil
	})
}

// quarterPast3 is the last 03:12, UTC: when an operator was woken.
func quarterPast3() time.Time {
	now := time.Now().UTC()
	at := time.Date(now.Year(), now.Month(), now.Day(), 3, 12, 0, 0, time.UTC)
	if at.After(now.Add(-time.Hour)) {
		at = at.AddDate(0, 0, -1)
	}
	return at
}

// night is a fleet in the morning after: web-2 was frozen at 03:20, and whoever looks wants to
// know.
func night(t testing.TB, flags ...string) *world {
	t.Helper()
	w := newStore(t)
	at := quarterPast3()
	w.remembers("billing",
		past{ID: "web-3", From: at.Add(-20 * time.Hour), To: at.Add(-8 * time.Hour), Why: "transferred", By: "ops@desk",
			Text: "a deploy", Successor: "web-1"},
		past{ID: "web-1", From: at.Add(-8*time.Hour + 200*time.Millisecond), To: at.Add(-32 * time.Minute),
			Why: "resigned",
			By:  "ops@desk", Text: "new kernel"},
		past{ID: "web-2", From: at.Add(-31*time.Minute - 59*time.Second), To: at.Add(8 * time.Minute), Why: "expired",
			Paused: 14_000},
		past{ID: "web-3", From: at.Add(9*time.Minute + 12*time.Second), To: time.Now().Add(-16 * time.Minute),
			Why: "transferred",
			By:  "ops@desk", Text: "back to the first machine", Successor: "web-1"})
	ago := func(d time.Duration) time.Time { return time.Now().Add(-d) }
	w.remembers("search/indexer",
		past{ID: "web-2", From: ago(9 * time.Minute), To: ago(7 * time.Minute), Why: "failed", Text: "exit status 1"},
		past{ID: "web-3", From: ago(7 * time.Minute), To: ago(4 * time.Minute), Why: "failed", Text: "exit status 1"},
		past{ID: "web-2", From: ago(4 * time.Minute), To: ago(2 * time.Minute), Why: "failed", Text: "exit status 1"})
	w.remembers("reports/monthly",
		past{ID: "web-4", From: ago(5 * time.Hour), To: ago(40 * time.Minute), Why: "expired"})
	for i := range 20 { // tokens grow with each write: those of the present terms are larger than all of these
		w.record("terms/padding", fmt.Sprintf("%020d", i+1), past{V: 1, ID: "x", From: ago(100 * time.Hour),
			To: ago(99 * time.Hour), Why: "resigned"})
	}
	w.jobs()
	web := []*primacy.Session{w.session("web-1"), w.session("web-2"), w.session("web-3")}
	first := []string{"billing", "exports/daily", "exports/hourly", "mail/outbound"}
	w.stand(web[0], "10.0.0.1:8080", first...)
	w.stand(web[1], "10.0.0.2:8080", append([]string{"search/indexer", "cache/warmer", "invoices"}, first...)...)
	w.stand(web[2], "10.0.0.3:8080", append([]string{"sessions/reaper"}, first...)...)
	w.pauses(pause.Pause{Scope: "cron/", By: "ops@desk", Reason: "the database moves to other disks",
		Until: time.Now().Add(42 * time.Minute)})
	w.own("tenants", 24, web...)
	lock, err := web[2].Mutex("backup/nightly", nil).Lock(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lock.Resign(context.Background()) })
	w.serves(flags...)
	return w
}

func (w *world) pauses(p pause.Pause) {
	w.Helper()
	w.eventually("a pause", func() bool { _, err := pause.Set(context.Background(), w.store, p); return err == nil })
}

func (w *world) paused() []pause.Pause {
	w.Helper()
	all, err := pause.List(context.Background(), w.store)
	if err != nil {
		w.Fatal(err)
	}
	return all
}

// own has members share n shards, one that comes and leaves among them.
func (w *world) own(name string, n int, members ...*primacy.Session) {
	w.Helper()
	var all sync.WaitGroup
	every, stop := context.WithCancel(context.Background())
	w.Cleanup(func() { stop(); all.Wait() })
	run := func(s *primacy.Session) (end func()) {
		g, err := shards.New(s, name, n, &shards.Options{Value: []byte("10.0.0." + s.ID()[4:] + ":8080"), Moves: n})
		if err != nil {
			w.Fatal(err)
		}
		ctx, cancel := context.WithCancel(every)
		ended := make(chan struct{})
		all.Go(func() {
			defer close(ended)
			_ = g.Run(ctx, func(ctx context.Context, _ *shards.Shard) error { <-ctx.Done(); return nil })
		})
		return func() { cancel(); <-ended }
	}
	even := func(members int) func() bool {
		return func() bool {
			st, err := shards.Read(context.Background(), w.session("reader"), name)
			ok := err == nil && len(st.Members) == members && len(st.Unowned()) == 0
			for _, m := range st.Members {
				ok = ok && m.Owns == m.Quota
			}
			return ok
		}
	}
	for _, s := range members {
		run(s)
	}
	leaves := run(w.session("web-4"))
	w.eventually("the shards are even", even(len(members)+1))
	leaves()
	w.eventually("the shards are even without it", even(len(members)))
}

// fleet writes what a group of many members looks like in a store: all shards but three have an
// owner, one member leaves, and another is unhealthy.
func (w *world) fleet(name string, n, members int) {
	w.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var all, ready sync.WaitGroup
	w.Cleanup(func() { cancel(); all.Wait() })
	for i := range members {
		value := fmt.Sprintf(`{"shards":%d,"instance":"i%d","weight":1,"ready":%t,"draining":%t,"value":%q}`, n, i,
			i != 7, i == 9, "MTAuMC4wLjE6ODA4MA==")
		ready.Add(1)
		all.Go(func() {
			s, err := primacy.NewSession(w.store, &primacy.Options{ID: fmt.Sprintf("web-%02d", i), TTL: time.Minute,
				Overrun: primacy.OverrunWait})
			if err != nil {
				w.Error(err)
				ready.Done()
				return
			}
			es := s.Elections(nil)
			var mine []string
			for shard := i; shard < n-3; shard += members {
				mine = append(mine, shards.NameOf(name, shard))
			}
			led, err := 0, es.Stand(mine...)
			if err != nil {
				w.Error(err)
			}
			for _, err := range es.Terms(ctx) {
				if led++; err != nil || led == len(mine) {
					break
				}
			}
			ready.Done()
			_ = s.Candidate(name, &primacy.CampaignOptions{Value: []byte(value)}).Run(ctx, func(ctx context.Context,
				_ *primacy.Term) error {
				<-ctx.Done()
				return nil
			})
			late, end := context.WithTimeout(context.Background(), 10*time.Second)
			defer end()
			_ = es.Close(late)
			_ = s.Close(late)
		})
	}
	ready.Wait()
	w.eventually("all members stand", func() bool {
		st, err := w.session("reader").Election(name).State(ctx)
		return err == nil && len(st.Waiting) == members-1
	})
}

// jobs writes what cron's jobs have done.
func (w *world) jobs() {
	w.Helper()
	type run struct {
		V    string    `json:"v"`
		Run  string    `json:"run"`
		By   string    `json:"by"`
		Host string    `json:"host"`
		When time.Time `json:"when"`
		Spec string    `json:"spec,omitempty"`
		Zone string    `json:"zone,omitempty"`
		Def  string    `json:"def,omitempty"`
		Code *int      `json:"code,omitempty"`
		Took string    `json:"took,omitempty"`
		Text string    `json:"text,omitempty"`
	}
	code := func(n int) *int { return &n }
	write := func(job, spec string, every time.Duration, n int, ends func(i int) run) {
		at := time.Now().UTC().Truncate(every).Add(-time.Duration(n) * every)
		for i := range n {
			at = at.Add(every)
			key := at.Format("20060102T150405Z") + ".01."
			e := ends(i)
			e.Run, e.By, e.Host, e.When = fmt.Sprint(i), fmt.Sprintf("web-%d", i%3+1), "web", at.Add(2*time.Second)
			w.record("cron/"+job, key+"a", run{V: "run", Run: e.Run, By: e.By, Host: e.Host, When: at, Spec: spec,
				Zone: "UTC",
				Def:  "a"})
			if e.V != "run" {
				w.record("cron/"+job, key+"z", e)
			}
		}
	}
	write("report-hourly", "0 * * * *", time.Hour, 24, func(i int) run {
		switch i {
		case 9:
			return run{V: "failed", Code: code(1), Took: "3.1s", Text: "psql: could not connect to server"}
		case 10:
			return run{V: "timeout", Took: "10m0s"}
		}
		return run{V: "ok", Code: code(0), Took: fmt.Sprintf("%d.%ds", 40+i%7, i%10)}
	})
	write("vacuum", "*/10 * * * *", 10*time.Minute, 18, func(i int) run {
		if i == 17 {
			return run{V: "lost", Text: "its lease was not renewed in time"}
		}
		return run{V: "ok", Code: code(0), Took: "1.2s"}
	})
	write("rates-import", "30 6 * * *", 24*time.Hour, 5, func(int) run {
		return run{V: "ok", Code: code(0),
			Took: "12s"}
	})
}
