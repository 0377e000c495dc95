package page

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/agent"
)

const (
	writeLimit = 5 * time.Second  // for a tab that does not read
	quiet      = 15 * time.Second // after which a beat shows that the stream is one: page.js waits for two
	atLeast    = 200 * time.Millisecond
	comesBack  = 2 * time.Second // a tab whose stream broke, and up to as much again
)

// streams counts the tabs that are kept up to date, at each listener by itself: any user of the
// machine can fill a port of loopback, and the owner of the socket still sees what happens.
type streams struct {
	mu   sync.Mutex
	open map[any]int
}

// enter counts one more tab at a listener, if there may be one more.
func (s *streams) enter(listener any, most int) (leave func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[listener] >= most {
		return nil, false
	}
	if s.open == nil {
		s.open = map[any]int{}
	}
	s.open[listener]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.open[listener]--
	}, true
}

// stream answers GET /ui/events/VIEW: what changes in a view, as server-sent events. The ID of each
// is the version of the view; with it a tab that comes back is told nothing if nothing has changed.
// A tab that reads slowly is told less often, and always the newest.
func (p *Page) stream(w http.ResponseWriter, r *http.Request, v view) error {
	leave, ok := p.streams.enter(agent.Door(r), p.o.Streams)
	if !ok {
		return bad(http.StatusServiceUnavailable, "Too many pages are open",
			"%d are kept up to date, as many as there may be: close some, or reload this one to see the present",
			p.o.Streams)
	}
	defer leave()
	in := p.login.visitOf(r)
	if in != nil { // a stream must not outlive the login
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(in.ctx, cancel)()
		r = r.WithContext(ctx)
	}
	defer p.feed.join()()
	q := r.URL.Query()
	seen := r.Header.Get("Last-Event-ID")
	if seen == "" {
		seen = q.Get("seen")
	}
	c, err := p.content(r.Context(), v, q)
	if err != nil {
		return err
	}
	s := &sender{w: w, c: http.NewResponseController(w)}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // nginx holds events back otherwise
	_ = s.c.SetReadDeadline(time.Time{})      // the server's own would end the stream
	has := p.keptOf(v, q).of(seen)
	end := "\n"
	if seen == c.version { // it has all of this
		end += "\n"
	}
	s.write(fmt.Appendf(nil, "retry: %d%s", (comesBack + rand.N(comesBack)).Milliseconds(), end))
	if seen != c.version {
		err = s.send(&has, c)
	}
	for err == nil && s.err == nil {
		later := p.feed.later()
		if c, err = p.content(r.Context(), v, q); err == nil {
			if err = s.send(&has, c); err == nil {
				err = p.pause(r, s, later)
			}
		}
	}
	if in != nil && in.ctx.Err() != nil {
		s.write([]byte("event: out\ndata: .\n\n")) // the tab has to log in
	}
	return nil // the stream has begun: no page can follow. The tab comes back, and is told then
}

// pause waits until there may be something new.
func (p *Page) pause(r *http.Request, s *sender, later <-chan struct{}) error {
	least := time.NewTimer(atLeast)
	defer least.Stop()
	silence := time.NewTimer(quiet - time.Since(s.wrote))
	defer silence.Stop()
	for {
		select {
		case <-later:
			select {
			case <-least.C:
				return nil
			case <-r.Context().Done():
				return r.Context().Err()
			case <-p.stopped:
				return http.ErrServerClosed
			}
		case <-silence.C:
			s.write([]byte("event: beat\ndata: .\n\n")) // a comment would be hidden from the page
			if s.err != nil {
				return s.err
			}
			silence.Reset(quiet)
		case <-r.Context().Done():
			return r.Context().Err()
		case <-p.stopped:
			return http.ErrServerClosed
		}
	}
}

// sender writes events.
type sender struct {
	w     http.ResponseWriter
	c     *http.ResponseController
	wrote time.Time
	err   error // of the first write that failed
}

// send sends what a tab lacks of a view, if it lacks anything.
func (s *sender) send(has *known, c content) error {
	u, news, err := has.since(c)
	if err != nil || !news {
		return err
	}
	text, err := json.Marshal(u)
	if err != nil {
		return err
	}
	s.write(fmt.Appendf(nil, "id: %s\nevent: view\ndata: %s\n\n", c.version, text))
	return nil
}

func (s *sender) write(text []byte) {
	if s.err != nil {
		return
	}
	s.wrote = time.Now()
	_ = s.c.SetWriteDeadline(s.wrote.Add(writeLimit))
	if _, s.err = s.w.Write(text); s.err == nil {
		s.err = s.c.Flush()
	}
}
