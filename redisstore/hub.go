package redisstore

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// hub receives what is pushed to this process: on one connection, its own channel and one for each line that is observed. Pushes only make
// things fast: after each new connection, and whenever there is doubt, everything is looked at.
type hub struct {
	s       *Store
	channel string

	mu     sync.Mutex
	leases map[string]*lease
	lines  map[string]*observed
	ps     *redis.PubSub
	runs   bool
}

// observed is a line that somebody observes.
type observed struct {
	users   int
	changed chan struct{} // closed at the next change
}

func newHub(s *Store) *hub {
	return &hub{s: s, channel: newID(), leases: map[string]*lease{}, lines: map[string]*observed{}}
}

func (h *hub) to() string                 { return h.s.base + "to:" + h.channel }
func (h *hub) on(name string) string      { return h.s.base + "on:" + name }
func (h *hub) sharded() bool              { return h.s.publish == "SPUBLISH" }
func (o *observed) stir()                 { close(o.changed); o.changed = make(chan struct{}) }
func (h *hub) line(channel string) string { return strings.TrimPrefix(channel, h.s.base+"on:") }

// start runs the hub if it does not run. The caller has the mutex.
func (h *hub) start() {
	if !h.runs {
		h.runs = true
		h.s.spawn(h.run)
	}
}

// add has a lease told what is pushed for it.
func (h *hub) add(l *lease) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leases[l.id] = l
	h.start()
}

func (h *hub) drop(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.leases, id)
}

// observe returns a line's state, and what gives it back.
func (h *hub) observe(name string) (o *observed, done func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.start()
	o = h.lines[name]
	if o == nil {
		o = &observed{changed: make(chan struct{})}
		h.lines[name] = o
		h.subscribe(h.on(name))
	}
	o.users++
	return o, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if o.users--; o.users == 0 {
			delete(h.lines, name)
			h.unsubscribe(h.on(name))
		}
	}
}

// next returns what is closed at the next change of the line, or when its changes begin to be pushed.
func (h *hub) next(o *observed) <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return o.changed
}

// subscribe asks for a channel in the background: it writes to a connection that may be silent.
func (h *hub) subscribe(channel string) {
	if ps := h.ps; ps != nil {
		h.s.spawn(func() {
			if h.sharded() {
				_ = ps.SSubscribe(h.s.ctx, channel)
			} else {
				_ = ps.Subscribe(h.s.ctx, channel)
			}
		})
	}
}

// unsubscribe gives a channel back, unless somebody has asked for it anew. The two are ordered by the mutex.
func (h *hub) unsubscribe(channel string) {
	if ps := h.ps; ps != nil {
		h.s.spawn(func() {
			h.mu.Lock()
			again := h.lines[h.line(channel)] != nil
			h.mu.Unlock()
			if again {
				return
			}
			if h.sharded() {
				_ = ps.SUnsubscribe(h.s.ctx, channel)
			} else {
				_ = ps.Unsubscribe(h.s.ctx, channel)
			}
			h.mu.Lock()
			defer h.mu.Unlock()
			if h.lines[h.line(channel)] != nil { // asked for between the two
				h.subscribe(channel)
			}
		})
	}
}

// run keeps a subscription until the store is closed.
func (h *hub) run() {
	for pause := 20 * time.Millisecond; h.s.ctx.Err() == nil; pause = min(2*pause, time.Second) {
		if h.listen() {
			pause = 20 * time.Millisecond
		}
		rest(h.s.ctx, pause)
	}
}

// silence is after how long without a message the server is asked for a sign of life, and how long it may take.
const silence = 3 * time.Second

// listen is one connection. It reports whether something came through.
func (h *hub) listen() (heard bool) {
	client := h.s.calls.dial(1)
	defer client.Close()
	h.mu.Lock()
	channels := []string{h.to()}
	for name := range h.lines {
		channels = append(channels, h.on(name))
	}
	var ps *redis.PubSub
	if h.sharded() {
		ps = client.SSubscribe(h.s.ctx)
	} else {
		ps = client.Subscribe(h.s.ctx)
	}
	h.ps = ps
	h.mu.Unlock()
	stop := context.AfterFunc(h.s.ctx, func() { ps.Close() })
	defer stop()
	defer ps.Close()
	defer h.gone()
	var err error
	if h.sharded() {
		err = ps.SSubscribe(h.s.ctx, channels...)
	} else {
		err = ps.Subscribe(h.s.ctx, channels...)
	}
	for asked := false; err == nil && h.s.ctx.Err() == nil; {
		var msg any
		msg, err = ps.ReceiveTimeout(h.s.ctx, silence)
		if err == nil {
			heard, asked = true, false
			err = h.got(msg)
		} else if timeout(err) && !asked {
			asked, err = true, ps.Ping(h.s.ctx)
		}
	}
	return heard
}

// gone notes that the connection is lost: what is asked from now on waits for the next.
func (h *hub) gone() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ps = nil
	for _, o := range h.lines {
		o.stir()
	}
}

// anew leaves the connection, whose server is not the right one any more.
func (h *hub) anew() {
	h.mu.Lock()
	ps := h.ps
	h.mu.Unlock()
	if ps != nil {
		h.s.spawn(func() { ps.Close() })
	}
}

// errUnsubscribed: the server has taken back what nobody else does: the slot has gone to another one (Redis 7).
var errUnsubscribed = errors.New("unsubscribed by the server")

// got takes one message.
func (h *hub) got(msg any) error {
	switch m := msg.(type) {
	case *redis.Subscription:
		if strings.HasSuffix(m.Kind, "unsubscribe") {
			if m.Channel == h.to() {
				return errUnsubscribed
			}
			return nil
		}
		if m.Channel == h.to() {
			h.doubt()
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if o := h.lines[h.line(m.Channel)]; o != nil {
			o.stir()
		}
	case *redis.Message:
		if m.Channel != h.to() {
			h.mu.Lock()
			defer h.mu.Unlock()
			if o := h.lines[h.line(m.Channel)]; o != nil {
				o.stir()
			}
			return nil
		}
		words := strings.Split(m.Payload, " ")
		h.mu.Lock()
		l := h.leases[words[len(words)-1]]
		h.mu.Unlock()
		if l != nil {
			l.pushed(words)
		}
	}
	return nil
}

// doubt has all leases look at everything: pushes may have been lost.
func (h *hub) doubt() {
	h.mu.Lock()
	all := make([]*lease, 0, len(h.leases))
	for _, l := range h.leases {
		all = append(all, l)
	}
	h.mu.Unlock()
	for _, l := range all {
		l.mu.Lock()
		if len(l.claims) > 0 {
			l.doubt = true
			for _, c := range l.claims {
				c.stale = c.busy > 0
			}
			l.later()
			select {
			case l.wake <- struct{}{}:
			default:
			}
		}
		l.mu.Unlock()
	}
}

// pushed takes what the server says to the lease: "h <token> <epoch>": a place is held; "w <token>": one that holds has somebody
// behind it; "s": something else has happened.
func (l *lease) pushed(words []string) {
	if words[0] == "s" || len(words) < 3 {
		l.learn()
		return
	}
	token, _ := strconv.ParseUint(words[1], 10, 64)
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.tokens[token]
	switch {
	case c == nil && l.inflight > 0: // it may have overtaken the answer of its Claim
		l.early[token] = words[0] + words[2]
	case c == nil:
	case words[0] == "w":
		l.wanted(c)
	case words[2] == l.epoch:
		l.seen(c, true, 0)
	default:
		l.later() // granted by a server of another history
	}
}

// timeout reports whether err is only that nothing came in time.
func timeout(err error) bool {
	var slow net.Error
	return errors.As(err, &slow) && slow.Timeout()
}
