//go:build linux

package golden

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/primacy-go/primacy/internal/etcdtest"
)

var tokenIs = regexp.MustCompile(`PRIMACY_TOKEN=\d+`)

// TestVerbs holds what the verbs print as JSON, what a command finds in its environment and in the
// state file, and the events.
func TestVerbs(t *testing.T) {
	t.Parallel()
	s := etcdtest.Start(t, etcdtest.Options{})
	w, b := newWorld(t, "etcd://"+s.Addr()), open(t, "verbs")
	history := open(t, "history")
	says := func(title string, args ...string) {
		t.Helper()
		b.is(title, func() string { return w.say(args...) })
	}
	does := func(title string, args ...string) { // once: it changes something
		t.Helper()
		said := w.say(args...)
		b.is(title, func() string { return said })
	}
	says("status of an empty store", "status", "-o", "json")
	says("leader of nothing", "leader", "billing", "-o", "json")
	says("history of nothing", "history", "billing", "-o", "json")

	const tells = `env | grep ^PRIMACY_ >"$0.env"; cp "$PRIMACY_STATE_FILE" "$0.state"
		trap 'kill $!; exit 3' TERM; echo up; sleep 1000 & wait`
	file := filepath.Join(w.dir, "first")
	first := w.start("run", "--id", "web-1", "--value", "v1", "--events", file+".events", "billing", "--", "sh", "-c", tells, file).prints("up")
	b.is("environment of a command", func() string {
		text, _ := os.ReadFile(file + ".env")
		return strings.NewReplacer(strconv.Itoa(first.cmd.Process.Pid)+".state", "PID.state").Replace(
			tokenIs.ReplaceAllString(sorted(strings.Split(strings.TrimSpace(w.local(string(text))), "\n")), "PRIMACY_TOKEN=N"))
	})
	b.is("state file of a command", func() string { return read(file + ".state") })
	second := w.start("run", "--id", "web-2", "billing", "--", "sh", "-c", obeys)
	says("status", "status", "-o", "json")
	says("status as lines", "status", "-o", "ndjson")
	says("status of one", "status", "billing", "-o", "json")
	says("leader", "leader", "billing", "-o", "json")
	observes := w.start("observe", "billing", "-o", "ndjson")
	b.is("observe", func() string { return plain(observes.text()) })
	does("transfer", "transfer", "billing", "--to", "web-2", "--reason", "closer to the data", "--id", "ops", "-o", "json")
	b.is("exit code of a leader that was asked to hand over", func() string { return fmt.Sprint(first.ends()) })
	b.is("events of a command", func() string {
		var all []string // without how often it was renewed, and without who leads now and then
		for _, line := range strings.Split(strings.TrimSpace(read(file+".events")), "\n") {
			if !strings.Contains(line, `"renew_late"`) && !strings.Contains(line, `"leader"`) {
				all = append(all, line)
			}
		}
		return strings.Join(all, "\n")
	})
	second.prints("up")
	b.is("observe a hand-over", func() string { return plain(observes.text()) })
	does("resign", "resign", "billing", "--reason", "deploy", "--id", "ops", "-o", "json")
	b.is("exit code of a leader that was asked to resign", func() string { return fmt.Sprint(second.ends()) })
	third := w.start("run", "--id", "web-3", "billing", "--", "sh", "-c", obeys).prints("up")
	w.eventually("its term is recorded", func() bool {
		newest, _, _ := strings.Cut(w.say("history", "billing", "-o", "ndjson"), "\n")
		return strings.Contains(newest, `"web-3"`) && strings.Contains(newest, `"from"`)
	})
	third.cmd.Process.Signal(syscall.SIGKILL)
	third.ends()
	fourth := w.start("run", "--id", "web-4", "billing", "--", "sh", "-c", obeys).prints("up")
	history.is("history", func() string { return w.say("history", "billing", "-o", "json") })
	history.is("history as lines", func() string { return w.say("history", "billing", "-o", "ndjson") })
	history.is("status with terms", func() string { return w.say("status", "billing", "-o", "json") })
	says("top", "top", "--once", "-o", "json")
	fourth.stop()

	lock := w.start("lock", "--id", "l1", "-o", "json", "backup").prints("}")
	b.is("lock without a command", func() string { return plain(lock.text()) })
	reader := w.start("lock", "--id", "r1", "-s", "-o", "json", "catalog").prints("}")
	b.is("lock without a command, shared", func() string { return plain(reader.text()) })
	slot := w.start("lock", "--id", "s1", "--slots", "3", "-o", "json", "build").prints("}")
	b.is("lock without a command, a slot", func() string { return plain(slot.text()) })
	says("status of locks", "status", "-o", "ndjson")
	says("leader of a lock", "leader", "catalog", "-o", "json")
	drained := w.start("run", "--id", "d1", "drained", "--", "sh", "-c", obeys).prints("up")
	next := w.start("run", "--id", "d2", "drained", "--", "sh", "-c", obeys)
	w.eventually("both stand", func() bool { return strings.Contains(w.say("status", "drained", "-o", "json"), "d2") })
	does("drain", "drain", "d1", "-o", "json")
	b.is("exit code of a leader that was drained", func() string { return fmt.Sprint(drained.ends()) })
	next.stop()

	w.start("cron", "--id", "c1", "tick", "@every 8000h", "--", "echo", "ticked")
	b.is("cron status", func() string { return w.say("cron", "status", "-o", "json") })
	does("cron run", "cron", "run", "tick", "-o", "json")
	w.eventually("it ran", func() bool { return strings.Contains(w.say("cron", "history", "tick", "-o", "json"), "exit_code") })
	b.is("cron status after a run", func() string { return w.say("cron", "status", "-o", "json") })
	says("cron history", "cron", "history", "tick", "-o", "json")
	does("cron pause", "cron", "pause", "tick", "-o", "json")
	b.is("cron status of a paused job", func() string { return w.say("cron", "status", "-o", "json") })
	does("cron resume", "cron", "resume", "tick", "-o", "json")
	dump := etcdKeys(t, "http://"+s.Addr())
	b.is("keys of cron", func() string {
		var all []string
		for _, line := range strings.Split(dump(), "\n") {
			if strings.Contains(line, "tick") || strings.Contains(line, "cron") {
				all = append(all, line)
			}
		}
		return w.local(sorted(all))
	})
}

// TestExitCodes holds the exit codes of the verbs.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	s := etcdtest.Start(t, etcdtest.Options{})
	w, b := newWorld(t, "etcd://"+s.Addr()), open(t, "exit-codes")
	w.start("run", "--id", "web-1", "billing", "--", "sh", "-c", obeys).prints("up")
	w.start("lock", "--id", "l1", "backup", "--", "sh", "-c", obeys).prints("up")
	gone := "etcd://127.0.0.1:1"
	for _, args := range []string{
		"run n -- sh -c true",
		"run n -- sh -c false",
		"run n -- sh -c 'exit 42'",
		"run n -- sh -c 'kill -9 $$'",
		"run n -- sh -c 'kill -TERM $$'",
		"run n -- /no/such/command",
		"run n -- /etc/passwd",
		"run n",
		"run --no-such-flag n -- true",
		"run --ttl 1ms n -- true",
		"run --wait 100ms billing -- true",
		"run --store " + gone + " --timeout 1s n -- true",
		"run --store nonsense://x n -- true",
		"lock n -- sh -c true",
		"lock n -- sh -c 'exit 42'",
		"lock n -c 'exit 41'",
		"lock -n backup -- true",
		"lock -w 0.1 backup -- true",
		"lock -n -E 7 backup -- true",
		"lock -s -n backup -- true",
		"lock --slots 2 -n backup -- true",
		"lock --slots 0 n -- true",
		"lock n -- /no/such/command",
		"lock --store " + gone + " --timeout 1s n -- true",
		"leader billing",
		"leader nobody",
		"leader billing --is web-1",
		"leader billing --is web-2",
		"leader billing --is-me --id web-1",
		"leader billing --is-me --id web-2",
		"leader nobody --wait 100ms",
		"leader billing --valid",
		"leader --store " + gone + " --timeout 1s billing",
		"leader",
		"status",
		"status billing",
		"status nobody",
		"status nothing/...",
		"status --store " + gone + " --timeout 1s",
		"history billing",
		"history nobody",
		"transfer billing --to nobody",
		"transfer nobody",
		"resign nobody",
		"cron status",
		"cron history nothing",
		"cron check -f /no/such/file",
		"cron pause nothing",
		"top --once",
		"version",
		"schema",
		"nonsense",
		"",
	} {
		code := w.start(words(args)...).ends()
		b.is("primacy "+strings.ReplaceAll(args, gone, "GONE"), func() string {
			return fmt.Sprint(code)
		})
	}
}

// words splits at spaces outside quotes.
func words(line string) (all []string) {
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			all = append(all, part)
		} else {
			all = append(all, strings.Fields(part)...)
		}
	}
	return all
}

// stream is an answer that goes on.
type stream struct {
	mu      chan struct{}
	lines   []string
	between string // two events
	end     func()
}

// text returns what came, each "waiting" once: how often it is told depends on how fast the others
// are.
func (s *stream) text() string {
	s.mu <- struct{}{}
	defer func() { <-s.mu }()
	var told []string
	for _, event := range strings.Split(plain(strings.Join(s.lines, "\n")), s.between) {
		if strings.Contains(event, `"renewed"`) {
			continue // five times a ttl
		}
		event = strings.TrimSpace(event)
		if !strings.Contains(event, `"event":"waiting"`) && !strings.HasPrefix(event, "event: waiting") || strings.Contains(event, `"position":1`) && !slices.Contains(told, event) {
			told = append(told, event)
		}
	}
	return strings.Join(told, s.between)
}

// TestSidecar holds the answers of the sidecar.
func TestSidecar(t *testing.T) {
	t.Parallel()
	s := etcdtest.Start(t, etcdtest.Options{})
	w, b := newWorld(t, "etcd://"+s.Addr()), open(t, "sidecar")
	terms := open(t, "sidecar-history")
	folder := filepath.Join(w.dir, "sockets")
	must(t, os.Mkdir(folder, 0o700))
	socket := filepath.Join(folder, "s")
	serve := w.start("serve", "--id", "side", "--socket", socket, "--compat", "leader-elector", "--election", "billing")
	c := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	t.Cleanup(c.CloseIdleConnections)
	do := func(ctx context.Context, method, path, body string, header ...string) (*http.Response, error) {
		r, err := http.NewRequestWithContext(ctx, method, "http://localhost"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if body != "" {
			r.Header.Set("Content-Type", "application/json")
		}
		for i := 0; i+1 < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		return c.Do(r)
	}
	answer := func(method, path, body string, header ...string) (string, string) {
		r, err := do(context.Background(), method, path, body, header...)
		if err != nil {
			return err.Error(), ""
		}
		defer r.Body.Close()
		text, _ := io.ReadAll(r.Body)
		says := []string{r.Status}
		var names []string
		for name := range r.Header {
			if strings.HasPrefix(name, "X-Primacy") || strings.HasPrefix(name, "Primacy-") || name == "Etag" || name == "Content-Type" || name == "Allow" {
				names = append(names, name)
			}
		}
		sort.Strings(names)
		for _, name := range names {
			value := r.Header.Get(name)
			if name == "X-Primacy-Age-Ms" || name == "Etag" {
				value = "VARIES"
			}
			says = append(says, name+": "+value)
		}
		return plain(strings.Join(append(says, strings.TrimSpace(string(text))), "\n")), string(text)
	}
	asks := func(terms *book, method, path, body string, header ...string) {
		t.Helper()
		terms.is(strings.TrimSpace(method+" "+path+" "+body), func() string { says, _ := answer(method, path, body, header...); return says })
	}
	follow := func(method, path, body string, header ...string) *stream {
		t.Helper()
		ctx, cancel := context.WithCancel(context.Background())
		r, err := do(ctx, method, path, body, header...)
		if err != nil {
			t.Fatal(err)
		}
		st := &stream{mu: make(chan struct{}, 1), lines: []string{r.Status, r.Header.Get("Content-Type")}, between: "\n", end: func() { cancel(); r.Body.Close() }}
		if strings.Contains(st.lines[1], "event-stream") {
			st.between, st.lines = "\n\n", append(st.lines, "")
		}
		go func() {
			for lines := bufio.NewScanner(r.Body); lines.Scan(); {
				st.mu <- struct{}{}
				st.lines = append(st.lines, lines.Text())
				<-st.mu
			}
		}()
		return st
	}
	w.eventually("it is ready", func() bool { says, _ := answer("GET", "/readyz", ""); return strings.HasPrefix(says, "200") })

	asks(b, "GET", "/livez", "")
	asks(b, "GET", "/leader/billing", "")
	asks(b, "GET", "/replica", "")
	asks(b, "GET", "/", "")
	asks(b, "GET", "/v1/elections", "")
	asks(b, "GET", "/v1/elections/nobody", "")
	asks(b, "GET", "/v1/elections/nobody/history", "")
	leads := follow("POST", "/v1/elections/billing/campaign", `{"id":"web-1","meta":{"zone":"b"},"direct":true}`)
	b.is("campaign", leads.text)
	waits := follow("POST", "/v1/elections/billing/campaign", `{"id":"web-2","value":"v2","direct":true}`,
		"Accept", "text/event-stream")
	b.is("campaign that waits, as server-sent events", waits.text)
	events := follow("GET", "/v1/elections/billing/events", "")
	b.is("events", events.text)
	b.is("GET /leader/billing of who leads", func() string { says, _ := answer("GET", "/leader/billing", ""); return says })
	b.is("GET / where one leads", func() string { says, _ := answer("GET", "/", ""); return says })
	asks(b, "GET", "/v1/elections/billing", "")
	b.is("GET /v1/elections with one", func() string { says, _ := answer("GET", "/v1/elections", ""); return says })
	asks(b, "POST", "/v1/elections/billing/transfer", `{"to":"nobody"}`)
	moved, _ := answer("POST", "/v1/elections/billing/transfer", `{"to":"web-2","reason":"deploy"}`)
	b.is("transfer", func() string { return moved })
	b.is("campaign of who is asked to hand over", leads.text)
	leads.end()
	b.is("campaign that has waited", waits.text)
	b.is("events of a hand-over", events.text)
	waits.end()
	events.end()
	b.is("nobody leads", func() string { says, _ := answer("GET", "/leader/billing", ""); return says })
	asks(terms, "GET", "/v1/elections/billing/history", "")
	asks(terms, "GET", "/v1/elections/billing/history?limit=1", "")

	held, text := answer("POST", "/v1/locks/nightly", `{"id":"l1","wait_ms":60000,"lease_ms":60000}`)
	b.is("lock", func() string { return held })
	token := between(text, `"token":"`, `"`)
	asks(b, "POST", "/v1/locks/nightly", `{"id":"l2"}`)
	asks(b, "GET", "/v1/locks/nightly", "")
	asks(b, "POST", "/v1/locks/nightly/renew", "", "Primacy-Token", token)
	b.is("renew by a wrong token", func() string {
		says, _ := answer("POST", "/v1/locks/nightly/renew", "", "Primacy-Token", "7")
		return says
	})
	released, _ := answer("DELETE", "/v1/locks/nightly", "", "Primacy-Token", token)
	b.is("unlock", func() string { return released })
	b.is("unlock again", func() string {
		says, _ := answer("DELETE", "/v1/locks/nightly", "", "Primacy-Token", token)
		return says
	})
	slot, slotText := answer("POST", "/v1/locks/build", `{"id":"s1","slots":2}`)
	b.is("slot of a semaphore", func() string { return slot })
	reader, readerText := answer("POST", "/v1/locks/catalog", `{"id":"r1","shared":true}`)
	b.is("shared lock", func() string { return reader })
	bound := follow("POST", "/v1/locks/bound", `{"id":"b1","bound":true,"direct":true}`)
	b.is("bound lock", bound.text)
	asks(b, "POST", "/v1/fence/disk-7", `{"token":"1843"}`)
	asks(b, "POST", "/v1/fence/disk-7", `{"token":"12"}`)
	asks(b, "POST", "/v1/fence/disk-7", `{"token":"x"}`)
	asks(b, "POST", "/v1/elections/billing/campaign", `{"nonsense":1}`)
	asks(b, "POST", "/v1/elections/billing/resign", `{"reason":"deploy"}`)
	asks(b, "DELETE", "/v1/elections/billing", "")
	asks(b, "GET", "/v1/cron", "")
	asks(b, "GET", "/v1/cron/nothing", "")
	asks(b, "GET", "/nothing", "")
	// A server that stops waits for the locks that it has promised, for up to a minute here.
	answer("DELETE", "/v1/locks/build", "", "Primacy-Token", between(slotText, `"token":"`, `"`))
	answer("DELETE", "/v1/locks/catalog", "", "Primacy-Token", between(readerText, `"token":"`, `"`))
	ends := follow("POST", "/v1/elections/stopped/campaign", `{"id":"web-1","direct":true}`)
	w.eventually("it leads", func() bool { return strings.Contains(ends.text(), "elected") })
	serve.cmd.Process.Signal(syscall.SIGTERM)
	b.is("a campaign when the server stops", ends.text)
	b.is("a bound lock when the server stops", bound.text)
	ends.end()
	bound.end()
	b.is("exit code", func() string { return fmt.Sprint(serve.ends()) })
	if _, err := os.Stat(socket); err == nil {
		t.Error("the socket is still there")
	}
}

func between(text, from, to string) string {
	_, rest, _ := strings.Cut(text, from)
	is, _, _ := strings.Cut(rest, to)
	return is
}
