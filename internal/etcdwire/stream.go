package etcdwire

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// tick is how often it is looked whether the stream has given a sign of life.
	tick = time.Second
	// quiet is how long a member may give no sign until it is asked for one. A call that it answers
	// without an error is a sign, if it went through AttemptAt: a thousand sessions that wait need
	// not ask a thousand times a second.
	quiet = 1400 * time.Millisecond
	// streamAlone is how much longer the stream may be silent while the member answers calls: the
	// stream alone may hang.
	streamAlone = 8 * time.Second
	// silence is how long a member may give no sign: a frozen one keeps its connection open.
	silence = 3 * time.Second
	// maxSilence is what silence grows to while stream after stream falls silent: then the cluster
	// is slow, and thousands of clients that open all their watches anew would keep it so.
	maxSilence = 8 * silence
	// signWithin is for a member that all calls have left: it must give a sign on the stream within
	// stream.wait/signWithin. That is 0.3 s, and more where stream after stream falls silent.
	signWithin = 10
	// healthyAfter is how long a stream must have lived until silence is short again.
	healthyAfter = 20 * time.Second
)

// stream is one life of the Hub's stream. The goroutine of serve sends, another receives, and timer
// ends a silent one: what two of them use is atomic.
type stream struct {
	h      *Hub
	raw    pb.Watch_WatchClient
	cancel context.CancelFunc
	wait   time.Duration // how long it may be silent
	timer  *time.Timer   // ends the stream after that
	muted  atomic.Bool   // it was ended because it was silent
	heard  atomic.Bool   // something came since the last tick
	link   MemberConn
	begun  time.Time
	last   atomic.Int64 // when something came last, in nanoseconds since begun
	good   atomic.Bool  // something came at all
	done   chan struct{}
}

// serve opens a stream at the current member and keeps it until it fails, is silent for too long,
// or nobody watches. It reports whether the stream was of use; otherwise the next try waits a
// little.
func (h *Hub) serve(wait time.Duration) (good, silent bool) {
	c, err := h.w.Members.Current()
	if err != nil {
		return false, false
	}
	ctx, cancel := context.WithCancel(h.w.ctx)
	defer cancel()
	st := &stream{h: h, cancel: cancel, wait: wait, link: c, begun: time.Now(), done: make(chan struct{})}
	st.timer = time.AfterFunc(wait, st.endIfSilent)
	defer st.timer.Stop()
	if st.raw, err = openWatch(ctx, c); err != nil {
		h.w.Members.FailOver(c)
		return false, st.muted.Load()
	}
	go st.receive()
	st.send(ctx, c)
	cancel()
	<-st.done
	if !h.empty() && h.w.ctx.Err() == nil {
		h.w.Members.FailOver(c)
	}
	return st.good.Load(), st.muted.Load()
}

// openWatch opens a stream. The server ends it when its member has no leader: one that was cut off
// tells nothing new.
func openWatch(ctx context.Context, c MemberConn) (pb.Watch_WatchClient, error) {
	return pb.NewWatchClient(c.Conn).Watch(clientv3.WithRequireLeader(ctx), bigAnswers)
}

// silent returns for how long nothing has come from the member, and for how long nothing on the
// stream.
func (st *stream) silent() (member, self time.Duration) {
	self = time.Since(st.begun) - time.Duration(st.last.Load())
	return min(self, st.h.w.Members.silent(st.link)), self
}

// endIfSilent ends the stream if it has been silent for too long, and looks again later if not.
func (st *stream) endIfSilent() {
	member, self := st.silent()
	if left := min(st.wait-member, streamAlone+st.wait-self); left > 0 {
		st.timer.Reset(left)
		return
	}
	st.muted.Store(true)
	st.cancel()
}

// send carries requests out until the stream ends. Send blocks when the member takes nothing in;
// then the timer ends the stream.
//
// While calls go to the stream's member, a tick asks for a sign of life only where none has come
// for quiet. Once calls have left the member, send asks at once and gives up after wait/signWithin
// without a sign. If a sign comes, the stream stays: from then on each tick asks, and the stream
// ends at a tick before which nothing has come since the last tick's question.
func (st *stream) send(ctx context.Context, c MemberConn) {
	t := time.NewTicker(tick)
	defer t.Stop()
	idle, asked := 0, false      // ticks without a watch; whether the last tick asked for a sign
	var signDue <-chan time.Time // nil: calls go to the member
	var askedAt time.Duration    // when calls had left the member, since st.begun
	for {
		if !st.flush() {
			return
		}
		switch left := st.h.w.Members.FailedOver(c); {
		case !left:
			signDue = nil
		case signDue == nil:
			if st.ask() != nil {
				return
			}
			askedAt, signDue = time.Since(st.begun), time.After(st.wait/signWithin)
		}
		select {
		case <-st.h.wake:
		case <-signDue:
			if time.Duration(st.last.Load()) < askedAt {
				st.muted.Store(true)
				return
			}
			signDue = make(chan time.Time) // a sign came, so the member lives: from now on the ticks ask
		case <-st.done:
			return
		case <-ctx.Done():
			return
		case <-t.C:
			if st.h.Reap() == 0 {
				if idle++; idle > 1 {
					return
				}
				continue
			}
			idle = 0
			heard, left := st.heard.Swap(false), st.h.w.Members.FailedOver(c)
			if left && asked && !heard {
				return // others found the member dead, and it does not answer us either: no need to wait longer
			}
			if member, self := st.silent(); !left && member < quiet && self < streamAlone {
				asked = false
				continue
			}
			asked = true
			if st.ask() != nil {
				return
			}
		}
	}
}

// ask asks the member for a sign of life on the stream.
func (st *stream) ask() error {
	progress := &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}
	return st.raw.Send(&pb.WatchRequest{RequestUnion: progress})
}

// flush sends what is to be opened and cancelled. It reports false if the stream has failed.
func (st *stream) flush() bool {
	for _, r := range st.h.Pending() {
		if st.raw.Send(r) != nil {
			return false
		}
	}
	return true
}

// Pending returns the requests that the present stream has not seen yet.
func (h *Hub) Pending() []*pb.WatchRequest {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []*pb.WatchRequest
	for _, id := range h.ended {
		end := &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: id}}
		out = append(out, &pb.WatchRequest{RequestUnion: end})
	}
	h.ended = nil
	todo := h.todo
	h.todo = nil
	for _, w := range todo {
		// Not one that was requested or refused already, that was given up since, or that the
		// prefix watch stands in for.
		if w.ID != 0 || w.refused || w != h.PrefixWatch && h.Watches[w.Span] != w || w.Replaceable &&
			h.PrefixWatch != nil && !h.dropping {
			continue
		}
		h.lastID++
		w.ID = h.lastID
		h.ByID[w.ID] = w
		h.opened = append(h.opened, request{w, w.ID})
		req := &pb.WatchCreateRequest{Key: []byte(w.Key), RangeEnd: []byte(w.End), WatchId: w.ID}
		if !w.Puts {
			req.Filters = []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NOPUT}
		}
		out = append(out, &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: req}})
	}
	return out
}

// receive hands signals out until the stream ends.
func (st *stream) receive() {
	defer close(st.done)
	for {
		r, err := st.raw.Recv()
		if err != nil {
			return
		}
		st.last.Store(int64(time.Since(st.begun)))
		st.heard.Store(true)
		st.good.Store(true)
		if !st.h.Take(r) {
			st.good.Store(false) // an auth token that is refused again and again must not make a busy loop
			st.cancel()
			return
		}
	}
}

// Take deals with one message. It reports false if the stream must be opened anew.
func (h *Hub) Take(r *pb.WatchResponse) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r.Header.GetClusterId() != h.w.cluster {
		return false // it says nothing of our claims
	}
	w := h.ByID[r.WatchId]
	if r.Created && len(h.opened) > 0 {
		// Where etcd refuses a watch it does not say which (its ID is then -1), but it answers in
		// order.
		first := h.opened[0]
		if w, h.opened = first.w, h.opened[1:]; w.ID != first.id {
			w = nil // given up meanwhile
		}
	}
	if r.Canceled && expired(r.CancelReason) {
		return false // the stream carries the auth token it was opened with; a new stream gets a new one
	}
	if w == nil || w != h.PrefixWatch && h.Watches[w.Span] != w {
		return true // a sign of life, or a watch that was given up
	}
	switch {
	case r.Canceled:
		h.Lost(w, r.Created)
	case r.Created:
		h.Stood(w, r.Header.GetRevision())
	case r.Fragment:
		return false // part of a revision proves nothing; we asked for none
	case len(r.Events) > 0:
		h.Deliver(w, r.Events)
	}
	return true
}

// expired reports whether a watch was refused for its auth token and not for its user's rights.
func expired(reason string) bool {
	for _, e := range []error{rpctypes.ErrInvalidAuthToken, rpctypes.ErrAuthOldRevision, rpctypes.ErrUserEmpty} {
		if strings.Contains(reason, e.Error()) {
			return true
		}
	}
	return false
}
