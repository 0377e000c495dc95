package httpfence

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/primacy-go/primacy/fence"
)

// gate lets handlers in by their tokens:
//
//	smaller than the largest known   refused
//	the largest known                runs beside the others under it
//	larger                           becomes the largest, on the disk; runs when those under smaller ones have returned
type gate struct {
	once sync.Once
	turn chan struct{} // a lock that waits no longer than a context; guards the rest

	loaded bool
	last   fence.Stamp
	inside map[*running]struct{}
	left   chan struct{} // closed when one leaves, and made anew
}

// running is a handler.
type running struct {
	stamp fence.Stamp
	stop  func(why error) // tells it to return; called while it has not left
}

func (g *gate) lock(ctx context.Context) error {
	g.once.Do(func() {
		g.turn, g.inside, g.left = make(chan struct{}, 1), map[*running]struct{}{}, make(chan struct{})
	})
	select {
	case g.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (g *gate) unlock() { <-g.turn }

// enter returns nil when h may run. It has to leave then.
func (g *gate) enter(ctx context.Context, f *Fence, h *running) error {
	for {
		if err := g.lock(ctx); err != nil {
			return err
		}
		if err := g.raise(ctx, f, h.stamp); err != nil {
			g.unlock()
			return err
		}
		if g.stopOlder(h.stamp) == 0 {
			g.inside[h] = struct{}{}
			g.unlock()
			return nil
		}
		left := g.left
		g.unlock()
		select {
		case <-left:
		case <-ctx.Done():
			return fmt.Errorf("requests under a smaller token are still being handled: %w", context.Cause(ctx))
		}
	}
}

// raise makes s the largest known, or returns why it is not. The caller has the lock.
func (g *gate) raise(ctx context.Context, f *Fence, s fence.Stamp) error {
	if f.Memory == nil {
		return errors.New("the server's fence has no Memory")
	}
	if !g.loaded {
		last, err := f.Memory.Load(ctx, f.Name)
		if err != nil {
			return fmt.Errorf("the largest token cannot be read: %w", err)
		}
		g.last, g.loaded = last, true
	}
	if err := s.After(g.last); err != nil {
		return err
	}
	if s == g.last {
		return nil
	}
	return g.store(ctx, f, s)
}

func (g *gate) store(ctx context.Context, f *Fence, s fence.Stamp) error {
	// Detached: a client that goes away must not leave a half stored token.
	if err := f.Memory.Store(context.WithoutCancel(ctx), s); err != nil {
		g.loaded = false // whether it is there now is unknown
		return fmt.Errorf("the token cannot be stored: %w", err)
	}
	g.last = s
	return nil
}

// stopOlder tells every handler under another token than s to return, and counts them. The caller has the lock, and s is the largest.
func (g *gate) stopOlder(s fence.Stamp) int {
	n := 0
	for h := range g.inside {
		if h.stamp.Token != s.Token {
			h.stop(&fence.StaleError{Name: h.stamp.Name, Token: h.stamp.Token, Largest: s.Token})
			n++
		}
	}
	return n
}

// leave says that h has returned.
func (g *gate) leave(h *running) {
	_ = g.lock(context.Background())
	defer g.unlock()
	delete(g.inside, h)
	close(g.left)
	g.left = make(chan struct{})
}

// adopt makes s the one that counts, and returns when no handler runs under another token.
func (g *gate) adopt(ctx context.Context, f *Fence, s fence.Stamp) error {
	if err := g.lock(ctx); err != nil {
		return err
	}
	if f.Memory == nil {
		g.unlock()
		return errors.New("the server's fence has no Memory")
	}
	err := g.store(ctx, f, s)
	g.loaded = err == nil
	g.unlock()
	if err != nil {
		return err
	}
	h := &running{stamp: s, stop: func(error) {}}
	if err := g.enter(ctx, f, h); err != nil {
		return err
	}
	g.leave(h)
	return nil
}
