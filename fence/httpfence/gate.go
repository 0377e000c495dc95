package httpfence

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/primacy-go/primacy/fence"
)

// gate lets handlers in by their tokens:
//
//	smaller than the largest known   refused
//	the largest known                runs beside the others under it
//	larger                           becomes the largest, on the disk; runs when those under smaller ones have returned
type gate struct {
	memory Memory
	name   string
	turn   chan struct{} // full while somebody has the turn to use the memory

	mu     sync.Mutex  // never held while the memory is asked: a handler must be able to leave
	last   fence.Stamp // the largest known
	loaded bool        // last is what the memory holds
	safe   bool        // and was stored by us, so that it is there after a crash, too
	inside map[*running]struct{}
	change chan struct{} // closed when a handler has returned, and made anew
}

// running is a handler.
type running struct {
	stamp fence.Stamp
	end   func(why error) // tells it to return; called once at most, while it is inside
	told  bool
}

// memoryLimit is how long a memory may take. Its context is not the request's: a client that goes
// away must not leave a half stored token.
const memoryLimit = 10 * time.Second

// place is what has one gate. Two gates over one memory would each admit what the other refuses,
// and set the memory back.
type place struct {
	memory Memory
	name   string
}

var gates sync.Map // place to *gate; a program has few, and they stay

func gateOf(m Memory, name string) (*gate, error) {
	if m == nil {
		return nil, errors.New("the server's fence has no Memory")
	}
	if !reflect.ValueOf(m).Comparable() {
		return nil, fmt.Errorf("the fence's Memory, a %T, cannot be told from another: use a pointer to it", m)
	}
	g, ok := gates.Load(place{m, name})
	if !ok {
		g, _ = gates.LoadOrStore(place{m, name}, &gate{memory: m, name: name, turn: make(chan struct{}, 1),
			inside: map[*running]struct{}{}, change: make(chan struct{})})
	}
	return g.(*gate), nil
}

// enter returns nil when h may run. It has to leave then.
func (g *gate) enter(ctx context.Context, h *running) error {
	for {
		if err := g.raise(ctx, h.stamp); err != nil {
			return err
		}
		in, change := g.admit(h)
		if in {
			return nil
		}
		if change == nil {
			continue // another token was raised meanwhile
		}
		select {
		case <-change:
		case <-ctx.Done():
			return fmt.Errorf("requests under a smaller token are still being handled: %w", context.Cause(ctx))
		}
	}
}

// admit lets h in, or tells those under other tokens to return and gives what is closed when one
// has. It does neither where h's stamp is not the largest.
func (g *gate) admit(h *running) (in bool, change chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.safe || g.last != h.stamp {
		return false, nil
	}
	if g.endOthersLocked(h.stamp) > 0 {
		return false, g.change
	}
	g.inside[h] = struct{}{}
	return true, nil
}

// endOthersLocked tells every handler under another stamp than s, the largest, to return, and
// counts them. The caller holds mu.
func (g *gate) endOthersLocked(s fence.Stamp) int {
	n := 0
	for h := range g.inside {
		// The fence may learn the origin of a token.
		if h.stamp.Token == s.Token && (h.stamp.Origin == "" || h.stamp.Origin == s.Origin) {
			continue
		}
		n++
		if !h.told { // once: each time it would get a second more for its answer
			h.told = true
			h.end(&fence.StaleError{Name: h.stamp.Name, Token: h.stamp.Token, Largest: s.Token})
		}
	}
	return n
}

// leave says that h has returned.
func (g *gate) leave(h *running) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.inside, h)
	close(g.change)
	g.change = make(chan struct{})
}

// raise makes s the largest known, or returns why it is not.
func (g *gate) raise(ctx context.Context, s fence.Stamp) error {
	if m, ok := g.memory.(interface{ usable() error }); ok {
		if err := m.usable(); err != nil {
			return err
		}
	}
	if done, err := g.known(s); done {
		return err
	}
	return g.alone(ctx, func(ctx context.Context) error {
		if err := g.load(ctx); err != nil {
			return err
		}
		if done, err := g.known(s); done {
			return err
		}
		return g.store(ctx, s)
	})
}

// known reports whether the memory need not be asked about s, and what the answer is.
func (g *gate) known(s fence.Stamp) (bool, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.loaded {
		return false, nil
	}
	err := s.After(g.last)
	return err != nil || g.safe && s == g.last, err
}

// load reads the largest stamp from the memory where it is not known. The caller has the turn.
func (g *gate) load(ctx context.Context) error {
	g.mu.Lock()
	loaded := g.loaded
	g.mu.Unlock()
	if loaded {
		return nil
	}
	last, err := g.memory.Load(ctx, g.name)
	if err != nil {
		return fmt.Errorf("the largest token cannot be read: %w", err)
	}
	g.set(last, true, false)
	return nil
}

// store makes s the largest, in the memory first. The caller has the turn.
func (g *gate) store(ctx context.Context, s fence.Stamp) error {
	var now fence.Stamp
	stored := false
	defer func() { g.set(now, stored, stored) }() // unknown after an error or a panic
	if err := g.memory.Store(ctx, s); err != nil {
		return fmt.Errorf("the token cannot be stored: %w", err)
	}
	now, stored = s, true
	return nil
}

func (g *gate) set(last fence.Stamp, loaded, safe bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last, g.loaded, g.safe = last, loaded, safe
}

// alone runs do while nobody else uses the memory. A memory that does not answer keeps its turn,
// but no caller longer than ctx.
func (g *gate) alone(ctx context.Context, do func(ctx context.Context) error) error {
	select {
	case g.turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("the fence's memory is busy: %w", context.Cause(ctx))
	}
	done := make(chan error, 1)
	go func() {
		err := errors.New("the fence's memory ended its goroutine")
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("the fence's memory panicked: %v", p)
			}
			<-g.turn
			done <- err
		}()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), memoryLimit)
		defer cancel()
		err = do(ctx)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("the fence's memory does not answer: %w", context.Cause(ctx))
	}
}

// adopt makes s the one that counts, and returns when no handler runs under another stamp.
func (g *gate) adopt(ctx context.Context, s fence.Stamp) error {
	if err := g.alone(ctx, func(ctx context.Context) error { return g.store(ctx, s) }); err != nil {
		return err
	}
	h := &running{stamp: s, end: func(error) {}}
	if err := g.enter(ctx, h); err != nil {
		return err
	}
	g.leave(h)
	return nil
}
