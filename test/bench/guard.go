package main

import (
	"fmt"
	"sync/atomic"
)

// guard watches one name: it fails when two hold it at once, when the library says that its own
// holder holds nothing, or when a token is not larger than the one before.
type guard struct {
	inside atomic.Int32
	token  atomic.Uint64
}

// enter is called by who has just won, leave before it gives back.
func (g *guard) enter(h Held) error {
	if n := g.inside.Add(1); n != 1 {
		return fmt.Errorf("mutual exclusion is broken: %d hold at once", n)
	}
	if err := h.Check(); err != nil {
		return fmt.Errorf("held no more as soon as it was won: %w", err)
	}
	if token := h.Token(); g.token.Swap(token) >= token && (token != 0 || hasTokens(h)) {
		return fmt.Errorf("token %d does not grow", token)
	}
	return nil
}

// hasTokens says whether a token of 0 is a mistake: ours always have one here.
func hasTokens(h Held) bool {
	_, ours := h.(ourHeld)
	return ours
}

func (g *guard) leave() { g.inside.Add(-1) }
