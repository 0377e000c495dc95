package agent

import "time"

// gap is for how long the cluster has had no primary, as this member sees it. A primary that is
// lost with its machine is shown until its lease has run out: it is counted from its last message,
// which of one that nobody wrote to may be old, but not older than its lease.
type gap struct {
	shown bool          // the line shows a primary
	known bool          // it has shown one
	store time.Duration // when the store had last answered while it did
	began time.Duration // since when it shows none; 0: it does
	heard time.Duration // the last message of a primary to this server
	clean bool          // the last primary has said where its WAL ended when it was shut down
}

// look is called at each step.
func (g *gap) look(now, store, heard time.Duration) {
	g.heard = max(g.heard, heard)
	switch {
	case g.shown:
		g.known, g.began, g.store = true, 0, store
	case g.began == 0:
		g.began = now
	}
}

// expiry is how much later than its ttl the store may end a lease.
const expiry = time.Second

// ended is for a promotion of this member. It returns 0 where it has seen no primary before.
func (g *gap) ended(now, ttl time.Duration) (lasted time.Duration, clean bool) {
	began := g.began
	switch {
	case !g.known || began == 0:
		return 0, g.clean
	case !g.clean && g.heard > 0:
		began = min(began, max(g.heard, min(began, g.store)-ttl-expiry))
	}
	return now - began, g.clean
}
