package page

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/agent"
	"github.com/primacy-go/primacy/cmd/internal/top"
	"github.com/primacy-go/primacy/memstore"
)

// tab is a reader of a stream.
type tab struct {
	*site
	header http.Header
	status int
	lines  *bufio.Scanner
	cancel context.CancelFunc
	ended  chan struct{}
}

// pipeWriter is an answer that is read while it is written.
type pipeWriter struct {
	t *tab
	w *io.PipeWriter
}

func (p *pipeWriter) Header() http.Header         { return p.t.header }
func (p *pipeWriter) WriteHeader(status int)      { p.t.status = status }
func (p *pipeWriter) Write(b []byte) (int, error) { return p.w.Write(b) }
func (p *pipeWriter) Flush()                      {}

func (s *site) opens(path string, headers ...string) *tab {
	s.Helper()
	r, w := io.Pipe()
	ctx, cancel := context.WithCancel(s.Context())
	t := &tab{site: s, header: http.Header{}, lines: bufio.NewScanner(r), ended: make(chan struct{})}
	t.cancel = func() { cancel(); _ = r.Close() } // as a connection that is closed
	t.lines.Buffer(nil, 1<<20)
	req := httptest.NewRequest("GET", path, nil).WithContext(ctx)
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		}
		req.Header.Set(headers[i], headers[i+1])
	}
	go func() {
		defer close(t.ended)
		s.ServeHTTP(&pipeWriter{t, w}, req)
		_ = w.Close()
	}()
	s.Cleanup(func() { t.cancel(); <-t.ended })
	return t
}

// event is one of a stream.
type event struct {
	id, name string
	retry    bool
	update
}

func (t *tab) next() (e event) {
	t.Helper()
	for t.lines.Scan() {
		line := t.lines.Text()
		switch {
		case line == "":
			return e
		case strings.HasPrefix(line, "id: "):
			e.id = line[4:]
		case strings.HasPrefix(line, "event: "):
			e.name = line[7:]
		case strings.HasPrefix(line, "retry: "):
			e.retry = true
		case line == "data: .": // a beat
		case strings.HasPrefix(line, "data: "):
			if err := json.Unmarshal([]byte(line[6:]), &e.update); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Fatal("the stream has ended")
	return e
}

// until returns the next event with such a text in one of its parts.
func (t *tab) until(text string) event {
	t.Helper()
	for {
		e := t.next()
		for _, p := range e.Parts {
			if strings.Contains(p.HTML, text) {
				return e
			}
		}
	}
}

func TestATabIsToldWhatChanges(t *testing.T) {
	within(t, Options{}, func(s *site) {
		s.stands("web-1", "billing", "")
		s.stands("web-1", "reports", "")
		tb := s.opens("/ui/events")
		first := tb.next()
		if !first.retry || first.id == "" || first.name != "view" || len(first.Lists["rows"]) != 2 {
			t.Fatalf("the first event is %+v", first)
		}
		if tb.header.Get("Content-Type") != "text/event-stream" || tb.header.Get("Cache-Control") != "no-store" {
			t.Errorf("%v", tb.header)
		}
		began := time.Now()
		s.stands("web-2", "billing", "")
		e := tb.until("web-1")
		if took := time.Since(began); took > 2*time.Second { // of which stands took one
			t.Errorf("told after %v", took)
		}
		for _, p := range e.Parts {
			if strings.Contains(p.HTML, "reports") {
				t.Errorf("a row that has not changed is sent: %s", p.HTML)
			}
		}
		if e.Lists != nil {
			t.Errorf("an order that has not changed is sent: %v", e.Lists)
		}
		began = time.Now()
		s.store.Expire("billing") // as if web-1 had been killed
		tb.until(">web-2</a>")
		if took := time.Since(began); took > time.Second {
			t.Errorf("the new leader was told after %v", took)
		}
		s.stands("web-9", "alerts", "")
		e = tb.until("alerts")
		if rows := e.Lists["rows"]; len(rows) != 3 {
			t.Errorf("the new row has no place: %v", e.Lists)
		}
	})
}

// A tab that comes back is told nothing if nothing has changed, and all if something has.
func TestATabThatComesBack(t *testing.T) {
	within(t, Options{}, func(s *site) {
		s.stands("web-1", "billing", "")
		page := s.get("/ui/").text
		_, after, _ := strings.Cut(page, `data-version="`)
		version, _, _ := strings.Cut(after, `"`)
		if version == "" {
			t.Fatal("the page has no version")
		}
		for _, tb := range []*tab{s.opens("/ui/events?seen=" + version), s.opens("/ui/events", "Last-Event-ID",
			version)} {
			first := tb.next()
			if !first.retry || first.id != "" {
				t.Errorf("a tab that has all of it is told %+v", first)
			}
		}
		tb := s.opens("/ui/events?seen=" + version + "0")
		if first := tb.next(); first.id != version || len(first.Parts) == 0 {
			t.Errorf("a tab that has another is told %+v", first)
		}
	})
}

// A stream on which nothing happens is known not to be dead.
func TestAQuietStreamHasBeats(t *testing.T) {
	within(t, Options{}, func(s *site) {
		tb := s.opens("/ui/events")
		tb.next()
		began := time.Now()
		for {
			if e := tb.next(); e.name == "beat" {
				break
			}
		}
		if took := time.Since(began); took < 10*time.Second || took > 20*time.Second {
			t.Errorf("a beat came after %v", took)
		}
	})
}

// A tab that reads slowly holds nobody up, and is told the newest in the end.
func TestASlowTab(t *testing.T) {
	within(t, Options{}, func(s *site) {
		s.stands("web-1", "billing", "")
		slow, quick := s.opens("/ui/events/election?name=billing"), s.opens("/ui/events/election?name=billing")
		slow.next()
		quick.next()
		for _, id := range []string{"web-2", "web-3", "web-4"} {
			s.stands(id, "billing", "")
			quick.until(id)
		}
		n := 0
		for {
			n++
			if e := slow.next(); strings.Contains(mustJSON(t, e.update), "web-4") {
				break
			}
		}
		if n > 3 {
			t.Errorf("it was told %d times", n)
		}
	})
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestThereIsARoomForSoManyTabs(t *testing.T) {
	within(t, Options{Streams: 2}, func(s *site) {
		a, b := s.opens("/ui/events"), s.opens("/ui/events")
		a.next()
		b.next()
		s.wants(s.get("/ui/events"), 503, "Too many pages are open")
		s.wants(s.get("/ui/"), 200)
		a.cancel()
		<-a.ended
		s.opens("/ui/events").next()
	})
}

// Nobody pays for a page at which nobody looks.
func TestTheStoreIsAskedWhileSomebodyLooks(t *testing.T) {
	within(t, Options{}, func(s *site) {
		time.Sleep(time.Minute)
		if n := s.lists.Load(); n != 0 {
			t.Errorf("%d lists before anybody looked", n)
		}
		tb := s.opens("/ui/events")
		tb.next()
		before := s.lists.Load()
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := s.lists.Load() - before; n < 100 || n > 130 {
			t.Errorf("%d lists in a minute", n)
		}
		more := s.opens("/ui/events")
		more.next()
		before = s.lists.Load()
		time.Sleep(time.Minute)
		if n := s.lists.Load() - before; n > 130 {
			t.Errorf("two tabs cost %d lists in a minute", n)
		}
		tb.cancel()
		more.cancel()
		time.Sleep(2 * time.Minute)
		before = s.lists.Load()
		time.Sleep(10 * time.Minute)
		if n := s.lists.Load() - before; n != 0 {
			t.Errorf("%d lists after all had gone", n)
		}
		s.opens("/ui/events").next()
	})
}

// A server that stops does not wait for tabs.
func TestStreamsEndWithTheServer(t *testing.T) {
	within(t, Options{}, func(s *site) {
		tb := s.opens("/ui/events")
		tb.next()
		go func() {
			for tb.lines.Scan() {
			}
		}()
		s.Stop()
		select {
		case <-tb.ended:
		case <-time.After(time.Second):
			t.Error("a stream goes on")
		}
	})
}

// The title is of the present too: it is all that is seen of a tab in the background.
func TestTheTitleIsUpdated(t *testing.T) {
	within(t, Options{}, func(s *site) {
		s.stands("web-1", "billing", "")
		tb := s.opens("/ui/events")
		if e := tb.next(); e.Title != "Overview · Primacy" {
			t.Errorf("the title is %q", e.Title)
		}
		lone := s.session("web-2")
		if _, err := lone.Election("reports").Campaign(s.Context(), nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		s.store.Partition("web-2", true) // its lease runs out
		for {
			if e := tb.next(); e.Title == "1 in trouble · Primacy" {
				return
			}
		}
	})
}

// A tab that opens its stream a moment after its page is sent what has changed in between, not all.
func TestATabIsSentWhatItsPageLacks(t *testing.T) {
	within(t, Options{}, func(s *site) {
		s.stands("web-1", "billing", "")
		s.stands("web-1", "reports", "")
		_, after, _ := strings.Cut(s.get("/ui/").text, `data-version="`)
		version, _, _ := strings.Cut(after, `"`)
		s.stands("web-2", "billing", "")
		s.get("/ui/") // the page is another now
		e := s.opens("/ui/events?seen=" + version).next()
		if len(e.Parts) == 0 || len(e.Parts) > 4 {
			t.Fatalf("it is sent %d parts", len(e.Parts))
		}
		for _, p := range e.Parts {
			if strings.Contains(p.HTML, "reports") {
				t.Errorf("a row that has not changed is sent: %s", p.HTML)
			}
		}
		if all := s.opens("/ui/events?seen=another").next(); len(all.Parts) < 8 {
			t.Errorf("who has nothing is sent %d parts", len(all.Parts))
		}
	})
}

// What is open at one listener takes no room from another: whoever reaches a port of loopback could
// take the owner's page away from him.
func TestEachListenerHasRoomForTabs(t *testing.T) {
	t.Parallel()
	store := memstore.New(memstore.Options{})
	own, err := primacy.NewSession(store, &primacy.Options{ID: "page"})
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close(t.Context())
	p := New(Options{Store: store, Session: own, Source: top.SourceOf(own, store, "", time.UTC), Streams: 1})
	defer p.Close()
	var clients []*http.Client
	var addrs []string
	for range 2 {
		l, err := agent.Secured{}.ListenTCP(t.Context(), "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		server, _ := agent.Secured{}.Serve(l, p, log.New(io.Discard, "", 0))
		defer server.Close()
		clients, addrs = append(clients, &http.Client{}), append(addrs, l.Addr().String())
	}
	opens := func(i, want int) (leave func()) {
		t.Helper()
		resp, err := clients[i].Get("http://" + addrs[i] + "/ui/events")
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != want {
			t.Errorf("listener %d: %d, want %d", i, resp.StatusCode, want)
		}
		return func() { _ = resp.Body.Close() }
	}
	defer opens(0, 200)()
	opens(0, 503)()
	defer opens(1, 200)()
	opens(1, 503)()
}

// Who comes when nobody has looked for a while is shown the present of a store that answers,
// whatever the last reading had ended with.
func TestAnOldEndOfReadingIsNotTheStores(t *testing.T) {
	for _, took := range []time.Duration{20 * time.Millisecond, time.Second} {
		within(t, Options{}, func(s *site) {
			s.slow = func(ctx context.Context) error {
				select {
				case <-time.After(took):
					return nil
				case <-ctx.Done():
					return fmt.Errorf("list: %w", ctx.Err())
				}
			}
			s.stands("web-1", "billing", "")
			fresh := func() bool {
				text := s.get("/ui/", "Accept", "application/json").text
				return strings.Contains(text, `"stale":false`)
			}
			for i := range 50 { // a list is under way when the reading ends
				time.Sleep(time.Minute + time.Duration(i*7)*time.Millisecond)
				if !fresh() {
					t.Fatalf("lists of %v: stale at look %d", took, i)
				}
			}
			s.down.Store(true)
			time.Sleep(5 * time.Second)
			if fresh() {
				t.Errorf("lists of %v: an outage is not told", took)
			}
			time.Sleep(time.Minute)
			s.down.Store(false)
			time.Sleep(time.Hour)
			if !fresh() {
				t.Errorf("lists of %v: stale an hour after an outage", took)
			}
		})
	}
}
