package agent

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/durable"
)

// The state, and how far the WAL has been.
const stateFile, positionFile = "state.json", "position.json"

// readState returns what the member knew durably, the zero State if it is new, and where the
// primary's WAL ended when this member noted that last; zero: not known.
func readState(dir string) (s core.State, heard core.Position, err error) {
	const todo = "if another member is the primary, remove the data directory and this file: it is set up anew; " +
		"if nobody is, remove nothing"
	if _, err := durable.ReadJSON(filepath.Join(dir, stateFile), &s, todo); err != nil {
		return s, heard, err
	}
	var p position
	if _, err := durable.ReadJSON(filepath.Join(dir, positionFile), &p, todo); err != nil {
		return s, heard, err
	}
	if p.Incarnation == s.Incarnation {
		s.Last = p.Position
	}
	return s, core.Position{Timeline: p.HeardOn, LSN: p.Heard}, nil
}

// states writes the state. An order that a stop has superseded may still wait for a disk that
// hangs: what it writes when the disk answers must not take the place of what was written since.
type states struct {
	dir  string
	last uint64     // the number that was given out last
	mu   sync.Mutex // held while the state is written
	done uint64     // the number of what was written last
}

var errSuperseded = errors.New("a later state was written")

// next returns what writes states for the next order. The loop calls it; what it returns may be
// called by the order, and returns once the state is on disk.
func (w *states) next() func(core.State) error {
	w.last++
	number := w.last
	return func(s core.State) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if number < w.done {
			return errSuperseded
		}
		w.done = number
		return durable.WriteJSON(filepath.Join(w.dir, stateFile), s)
	}
}

// position is how far the WAL of one incarnation has been, and the primary's.
type position struct {
	Incarnation string `json:"incarnation"`
	core.Position
	// Heard is where the primary's WAL ended as it last said. With durability async a member that
	// was started again knows by it how far it is behind.
	Heard   core.LSN      `json:"heard,omitempty"`
	HeardOn core.Timeline `json:"heard_timeline,omitempty"` // of that; 0: a former version has noted it
}

// notes writes down how far the WAL has been, beside the orders: a disk that hangs must not hold
// one up.
type notes struct {
	dir      string
	answered chan struct{} // a value when there is more to write
	mu       sync.Mutex
	last     position
}

// write writes p unless that was written last. How far the WAL of an incarnation has been does not
// go back.
func (n *notes) write(p position) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p.Incarnation == n.last.Incarnation && !n.last.Before(p.Position) {
		p.Position = n.last.Position
	}
	if p.Position == (core.Position{}) || p == n.last {
		return nil
	}
	err := durable.WriteJSON(filepath.Join(n.dir, positionFile), p)
	if err == nil {
		n.last = p
	}
	return err
}

// noteEvery is the time between two writes of how far the WAL has been. After an answer it is
// written at once.
const noteEvery = 5 * time.Second

// keep writes down again and again what now says.
func (n *notes) keep(ctx context.Context, now func(context.Context) position, log *slog.Logger) {
	for ctx.Err() == nil {
		if err := n.write(now(ctx)); err != nil {
			log.Warn("how far the WAL has been was not noted", "err", err)
		}
		select {
		case <-time.After(noteEvery):
		case <-n.answered:
		case <-ctx.Done():
		}
	}
}

// hurry has what now says written at once.
func (n *notes) hurry() {
	select {
	case n.answered <- struct{}{}:
	default:
	}
}

// reached returns what is to be noted.
func reached(a *Agent) position {
	s := a.member.State()
	return position{s.Incarnation, s.Last, a.last.LSN, a.last.Timeline}
}
