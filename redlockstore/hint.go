package redlockstore

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/primacy-go/primacy/internal/storeutil"
)

// Hints are published by the scripts that set, change and delete keys. They may be lost, and
// nothing rests on them: who waits looks by itself too. A hint is passed on when as many servers
// have sent it as make a majority, for then the name is free, or held.

// hints wakes one who waits for a name, or watches it.
type hints struct {
	s       *Store
	channel string
	freed   chan struct{} // holds one: keys were deleted
	changed chan struct{} // holds one: anything happened
}

// hub has one subscription for each server, from when the first asks for hints.
type hub struct {
	mu   sync.Mutex
	all  map[string]map[*hints]struct{} // by channel
	seen map[string]uint64              // servers that have sent a hint, as bits, by channel and hint
	kick []chan struct{}                // of each server, holds one: the channels have changed
}

// hint asks for hints about a name. close ends it.
func (s *Store) hint(name string) *hints {
	h := &hints{s: s, channel: s.channel(name), freed: make(chan struct{}, 1), changed: make(chan struct{}, 1)}
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	if s.hub.all == nil {
		s.hub.all, s.hub.seen = map[string]map[*hints]struct{}{}, map[string]uint64{}
		for _, v := range s.servers {
			s.hub.kick = append(s.hub.kick, make(chan struct{}, 1))
			s.run(v.listen)
		}
	}
	if s.hub.all[h.channel] == nil {
		s.hub.all[h.channel] = map[*hints]struct{}{}
		s.hub.changedLocked()
	}
	s.hub.all[h.channel][h] = struct{}{}
	return h
}

// changedLocked has every subscription follow the channels that are asked for. The caller holds
// hub.mu.
func (b *hub) changedLocked() {
	for _, kick := range b.kick {
		storeutil.Signal(kick)
	}
}

func (h *hints) close() {
	s := h.s
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	delete(s.hub.all[h.channel], h)
	if len(s.hub.all[h.channel]) == 0 {
		delete(s.hub.all, h.channel)
		s.hub.changedLocked()
	}
}

// listen keeps a subscription to the server while it answers.
func (v *server) listen() {
	for v.s.ctx.Err() == nil {
		if v.state() == nil {
			v.subscribe()
		}
		_ = storeutil.Sleep(v.s.ctx, 100*time.Millisecond)
	}
}

// subscribe hears what the server publishes, until the connection ends or was silent for too long.
func (v *server) subscribe() {
	ctx, stop := context.WithCancel(v.s.ctx)
	p := v.rdb.Subscribe(ctx)
	context.AfterFunc(ctx, func() { _ = p.Close() })
	defer stop()
	if p.Subscribe(ctx, v.s.cfg.Prefix+":hint") != nil { // of nobody, so that there is a connection to hear on
		return
	}
	v.s.run(func() { v.follow(ctx, stop, p) })
	const silence = 10 * time.Second
	for quiet := 0; quiet < 2; {
		got, err := p.ReceiveTimeout(ctx, silence)
		switch m, ok := got.(*redis.Message); {
		case ok:
			v.s.heard(v.at, m.Channel, m.Payload)
			quiet = 0
		case err == nil:
			quiet = 0
		case isTimeout(err):
			if quiet++; p.Ping(ctx) != nil {
				return
			}
		default:
			return
		}
	}
}

// follow subscribes to the channels that are asked for, and to no others, one change after the
// other: a name comes and goes with each who waits.
func (v *server) follow(ctx context.Context, stop context.CancelFunc, p *redis.PubSub) {
	defer stop()
	have := map[string]bool{}
	for {
		var add, drop []string
		v.s.hub.mu.Lock()
		for c := range v.s.hub.all {
			if !have[c] {
				add, have[c] = append(add, c), true
			}
		}
		for c := range have {
			if v.s.hub.all[c] == nil {
				drop = append(drop, c)
				delete(have, c)
			}
		}
		kick := v.s.hub.kick[v.at]
		v.s.hub.mu.Unlock()
		if len(add) > 0 && p.Subscribe(ctx, add...) != nil || len(drop) > 0 && p.Unsubscribe(ctx, drop...) != nil {
			return
		}
		select {
		case <-kick:
		case <-ctx.Done():
			return
		}
	}
}

// heard counts a hint, and passes it on when a majority has sent it.
func (s *Store) heard(at int, channel, payload string) {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	key := channel + "\n" + payload
	if len(s.hub.seen) > 10_000 {
		clear(s.hub.seen) // of what a minority has sent
	}
	s.hub.seen[key] |= 1 << at
	n := 0
	for bits := s.hub.seen[key]; bits != 0; bits &= bits - 1 {
		n++
	}
	if n != s.quorum {
		return
	}
	for h := range s.hub.all[channel] {
		storeutil.Signal(h.changed)
		if strings.HasPrefix(payload, "-") {
			storeutil.Signal(h.freed)
		}
	}
}
