package redisstore

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/primacy-go/primacy/internal/storeutil"
)

// listener receives what is pushed to this process, on one connection: its own channel, and one for
// each line that somebody observes. Pushes only make things fast: after each new connection, and
// whenever some may have been lost, everything is looked at.
type listener struct {
	*server
	channel string

	mu     sync.Mutex
	leases map[string]*lease
	lines  map[string]*watchedLine
	ps     *redis.PubSub // nil while there is no connection
	runs   bool
}

// watchedLine is a line that somebody observes.
type watchedLine struct {
	users   int
	changed chan struct{} // closed at the next change
}

func newListener(s *server) *listener {
	return &listener{server: s, channel: newID(), leases: map[string]*lease{}, lines: map[string]*watchedLine{}}
}

// own is the channel of this process.
func (h *listener) own() string { return h.base + "to:" + h.channel }

// channelOf is the channel of a line.
func (h *listener) channelOf(name string) string { return h.base + "on:" + name }

// lineOfLocked returns the line of a channel if somebody observes it, or nil. The caller holds mu.
func (h *listener) lineOfLocked(channel string) *watchedLine {
	return h.lines[strings.TrimPrefix(channel, h.base+"on:")]
}

func (o *watchedLine) changedLocked() {
	close(o.changed)
	o.changed = make(chan struct{})
}

// startLocked listens from now on. The caller holds mu.
func (h *listener) startLocked() {
	if !h.runs {
		h.runs = true
		h.spawn(h.run)
	}
}

// add has a lease receive what is pushed for it.
func (h *listener) add(l *lease) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leases[l.id] = l
	h.startLocked()
}

func (h *listener) drop(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.leases, id)
}

// observe begins to observe a line. The caller calls done at the end.
func (h *listener) observe(name string) (o *watchedLine, done func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.startLocked()
	o = h.lines[name]
	if o == nil {
		o = &watchedLine{changed: make(chan struct{})}
		h.lines[name] = o
		h.subscribeLocked(h.channelOf(name))
	}
	o.users++
	return o, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if o.users--; o.users == 0 {
			delete(h.lines, name)
			h.unsubscribeLocked(h.channelOf(name))
		}
	}
}

// next returns a channel that is closed at the next change of the line, or when its changes begin
// to be pushed.
func (h *listener) next(o *watchedLine) <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return o.changed
}

// subscribe asks for channels. On a cluster from Redis 7 on they belong to slots.
func (h *listener) subscribe(ps *redis.PubSub, channels ...string) error {
	if h.publish == "SPUBLISH" {
		return ps.SSubscribe(h.ctx, channels...)
	}
	return ps.Subscribe(h.ctx, channels...)
}

func (h *listener) unsubscribe(ps *redis.PubSub, channel string) error {
	if h.publish == "SPUBLISH" {
		return ps.SUnsubscribe(h.ctx, channel)
	}
	return ps.Unsubscribe(h.ctx, channel)
}

// subscribeLocked asks for a channel in the background: the connection may be silent. The caller
// holds mu.
func (h *listener) subscribeLocked(channel string) {
	if ps := h.ps; ps != nil {
		h.spawn(func() { _ = h.subscribe(ps, channel) })
	}
}

// unsubscribeLocked gives a channel back in the background, unless somebody has asked for it anew.
// The caller holds mu.
func (h *listener) unsubscribeLocked(channel string) {
	ps := h.ps
	if ps == nil {
		return
	}
	h.spawn(func() {
		h.mu.Lock()
		again := h.lineOfLocked(channel) != nil
		h.mu.Unlock()
		if again {
			return
		}
		_ = h.unsubscribe(ps, channel)
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.lineOfLocked(channel) != nil { // asked for between the two
			h.subscribeLocked(channel)
		}
	})
}

// run listens until the store is closed, on one connection after the other.
func (h *listener) run() {
	for pause := 20 * time.Millisecond; h.ctx.Err() == nil; pause = min(2*pause, time.Second) {
		if h.listen() {
			pause = 20 * time.Millisecond
		}
		_ = storeutil.Sleep(h.ctx, pause)
	}
}

// silence is after how long without a message the server is pinged, and how long the answer may
// take.
const silence = 3 * time.Second

// listen listens on one connection until that fails. It says whether anything came.
func (h *listener) listen() (received bool) {
	client := h.calls.dial(1)
	defer client.Close()
	h.mu.Lock()
	channels := []string{h.own()}
	for name := range h.lines {
		channels = append(channels, h.channelOf(name))
	}
	ps := client.Subscribe(h.ctx)
	h.ps = ps
	h.mu.Unlock()
	defer h.disconnected()
	h.listenOn(ps, func() error { return h.subscribe(ps, channels...) }, func(msg any) error {
		received = true
		return h.receive(msg)
	})
	return received
}

// listenOn hands on what a subscription receives, until the connection or the store ends, the
// server falls silent, or take returns an error.
func (s *server) listenOn(ps *redis.PubSub, subscribe func() error, take func(msg any) error) {
	stop := context.AfterFunc(s.ctx, func() { ps.Close() })
	defer stop()
	defer ps.Close()
	err := subscribe()
	for pinged := false; err == nil && s.ctx.Err() == nil; {
		var msg any
		if msg, err = ps.ReceiveTimeout(s.ctx, silence); err == nil {
			pinged, err = false, take(msg)
		} else if timeout(err) && !pinged {
			pinged, err = true, ps.Ping(s.ctx)
		}
	}
}

// disconnected notes that there is no connection. Those who observe lines read them.
func (h *listener) disconnected() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ps = nil
	for _, o := range h.lines {
		o.changedLocked()
	}
}

// reconnect leaves the connection, whose server is not the right one any more.
func (h *listener) reconnect() {
	h.mu.Lock()
	ps := h.ps
	h.mu.Unlock()
	if ps != nil {
		h.spawn(func() { ps.Close() })
	}
}

// errUnsubscribed says that the server itself has ended a subscription: the slot has gone to
// another server (Redis 7).
var errUnsubscribed = errors.New("unsubscribed by the server")

// receive takes one message.
func (h *listener) receive(msg any) error {
	switch m := msg.(type) {
	case *redis.Subscription:
		switch gone := strings.HasSuffix(m.Kind, "unsubscribe"); {
		case gone && m.Channel == h.own():
			return errUnsubscribed
		case gone:
		case m.Channel == h.own():
			h.lookAtAll()
		default:
			h.changed(m.Channel)
		}
	case *redis.Message:
		if m.Channel != h.own() {
			h.changed(m.Channel)
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

// changed has those who observe the line of a channel read it.
func (h *listener) changed(channel string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if o := h.lineOfLocked(channel); o != nil {
		o.changedLocked()
	}
}

// lookAtAll has all leases look at everything: pushes may have been lost.
func (h *listener) lookAtAll() {
	h.mu.Lock()
	all := slices.Collect(maps.Values(h.leases))
	h.mu.Unlock()
	for _, l := range all {
		l.pushesLost()
	}
}

// timeout reports whether err is only that nothing came in time.
func timeout(err error) bool {
	var slow net.Error
	return errors.As(err, &slow) && slow.Timeout()
}
