package memstore

import (
	"github.com/primacy-go/primacy/driver"
)

// Follow has News tell what becomes of places.
func (l *lease) Follow(places ...driver.Place) {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	for _, p := range places {
		c := l.find(p)
		switch {
		case c == nil: // News has told, or its owner released it
		case p.Held:
			c.wants = true
			c.tellWanted()
		default:
			c.follows = true
			c.tellHeld()
		}
	}
}

// tellHeld tells, once, that a claim which is followed has come to hold.
func (c *claim) tellHeld() {
	if c.follows && c.held {
		c.follows = false
		c.lease.tell(driver.News{Place: c.place(), Held: true})
	}
}

// tellWanted tells, once, that a claim of another lease waits behind this one.
func (c *claim) tellWanted() {
	if !c.wants || !c.held {
		return
	}
	behind := false
	for _, o := range c.line.claims {
		behind = behind || o.token > c.token && !o.held && o.lease != c.lease
	}
	if behind {
		c.wants = false
		c.lease.tell(driver.News{Place: c.place(), Wanted: true})
	}
}
