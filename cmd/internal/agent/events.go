package agent

import (
	"context"
	"errors"
	"iter"
	"maps"
	"net/http"
	"strconv"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/fanout"
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

// events answers GET /v1/elections/{name}/events. A reader that is slow misses what is over, never
// the latest, and holds nobody up.
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
	out, ok := a.admit(w, r, streamsPerDoor)
	if !ok {
		return
	}
	defer out()
	s := newStream(w, r)
	// An event that is a chunk needs two writes: its length fills the server's buffer. Here the
	// connection's end is that of the body.
	w.Header().Set("Transfer-Encoding", "identity")
	if !s.write(nil) { // the headers, before anything happens
		return
	}
	states := a.states.Join(name)
	defer states.Close()
	send := func() bool {
		n := states.Take()
		if n == nil {
			return true
		}
		known := n.Err == nil && strconv.FormatUint(n.Value.Revision, 10) == seen
		if seen = ""; known {
			return true
		}
		return s.write(n.Encoded(s.form(), s.event)) && (n.Err == nil || down(n.Err))
	}
	alive := func() bool {
		if s.sse {
			return s.write([]byte(": alive\n\n"))
		}
		return s.send("alive", event{Event: "alive"})
	}
	if errors.Is(follow(r, a.stopped, nil, nil, states.Changed(), aliveEvery, send, alive), errStopping) {
		p := stopping.Problem("ask another one, or again in a moment")
		s.send("ended", event{Event: "ended", Problem: &p})
	}
}

// down says that the store does not answer: the observer goes on. After other errors it has ended.
func down(err error) bool { return errors.Is(err, primacy.ErrUnreachable) }

// form is which of the encodings of a piece of news the stream has.
func (s *stream) form() int {
	if s.sse {
		return 1
	}
	return 0
}

// event returns a piece of news as the stream has it.
func (s *stream) event(n *fanout.News[primacy.State]) []byte {
	e, id := event{Event: "leader"}, ""
	switch {
	case n.Err == nil:
		j := shown.StateOf(n.Value)
		e.State, id = &j, j.Revision
	case down(n.Err):
		p := unreachable.Problem("%v", n.Err)
		e = event{Event: "unreachable", Problem: &p}
	default:
		p := kindOf(n.Err).Problem("%v", n.Err)
		e = event{Event: "ended", Problem: &p}
	}
	b, err := encode(s.sse, e.Event, id, e)
	if err != nil {
		panic(err) // strings and numbers always have an encoding
	}
	return b
}

// places says who stands where in a line.
type places struct {
	revision uint64
	held     bool
	holder   string
	of       map[string]int // of those who wait, by id; 1 is next
}

func placesIn(st primacy.State) places {
	p := places{revision: st.Revision, held: st.Leader != nil, of: map[string]int{}}
	if p.held {
		p.holder = st.Leader.ID
	}
	for i, w := range st.Waiting {
		if _, there := p.of[w.ID]; !there && !w.Held {
			p.of[w.ID] = i + 1
		}
	}
	return p
}

// placesOf returns what tells those who wait which place they have, as the session sees it.
func placesOf(s *primacy.Session) *fanout.Hub[places] {
	return fanout.New(fanout.Source[places]{
		Observe: func(ctx context.Context, name string) iter.Seq2[places, error] {
			return func(yield func(places, error) bool) {
				for st, err := range s.Election(name).Observe(ctx, primacy.WholeLine) {
					if !yield(placesIn(st), err) {
						return
					}
				}
			}
		},
		Revision: fanout.Revision(s, func(p places) uint64 { return p.revision }),
		Same: func(a, b places) bool {
			return a.held == b.held && a.holder == b.holder && maps.Equal(a.of, b.of)
		},
	})
}
