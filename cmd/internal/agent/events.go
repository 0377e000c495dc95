package agent

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/health"
	"github.com/primacy-go/primacy/cmd/internal/shown"
)

// event is one change of who leads, or of the leader's value.
type event struct {
	Event   string          `json:"event"` // leader, unreachable, alive, ended
	State   *shown.State    `json:"state,omitempty"`
	Problem *health.Problem `json:"problem,omitempty"`
}

// aliveEvery is how often a stream without events shows that it is one.
const aliveEvery = 10 * time.Second

// events answers GET /v1/elections/{name}/events. A reader that is slow misses what is over, never the latest, and holds nobody up.
func (a *Agent) events(w http.ResponseWriter, r *http.Request, name string) {
	if !sound(w, name, "") {
		return
	}
	seen := r.Header.Get("Last-Event-ID")
	if seen == "" {
		seen = r.URL.Query().Get("since")
	}
	if _, err := strconv.ParseUint(seen, 10, 64); seen != "" && err != nil {
		health.Invalid.Write(w, "Last-Event-ID is %q: give the id of an event, a revision", seen)
		return
	}
	out, ok := a.admit(w)
	if !ok {
		return
	}
	defer out()
	s := newStream(w, r)
	if !s.write("") { // the headers, before anything happens
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	news := make(chan event, 1)
	go a.observe(ctx, name, seen, news)
	for {
		alive := time.NewTimer(aliveEvery)
		select {
		case e := <-news:
			id := ""
			if e.State != nil {
				id = e.State.Revision
			}
			if !s.send(e.Event, id, e) || e.Event == "ended" {
				return
			}
		case <-alive.C:
			if s.sse && !s.write(": alive\n\n") || !s.sse && !s.send("alive", "", event{Event: "alive"}) {
				return
			}
		case <-a.stopped:
			p := stopping.Problem("ask another one, or again in a moment")
			s.send("ended", "", event{Event: "ended", Problem: &p})
			return
		case <-r.Context().Done():
			return
		}
		alive.Stop()
	}
}

// observe puts the latest event into news, in place of one that nobody took.
func (a *Agent) observe(ctx context.Context, name, seen string, news chan event) {
	put := func(e event) {
		select {
		case <-news:
		default:
		}
		news <- e
	}
	for st, err := range a.own.Election(name).Observe(ctx) {
		j := shown.StateOf(st)
		switch {
		case err == nil && j.Revision == seen:
		case err == nil:
			put(event{Event: "leader", State: &j})
		case errors.Is(err, primacy.ErrUnreachable):
			p := unreachable.Problem("%v", err)
			put(event{Event: "unreachable", Problem: &p})
		default:
			p := kindOf(err).Problem("%v", err)
			put(event{Event: "ended", Problem: &p})
		}
		seen = ""
	}
}
