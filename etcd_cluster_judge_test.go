package primacy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/etcdstore"
)

// ledTerm is one term as the judge of the simulated cluster knows it.
type ledTerm struct {
	term    *Term
	m       *node
	session string        // its lease, as keys end
	at      time.Duration // when it was won
	over    bool          // Check said no once
	working bool
	slept   bool // its machine was suspended under it, and nothing can stop work that does not run
	lost    bool // it ended before its work was done
}

func (w *ledTerm) String() string { return fmt.Sprintf("n%d under token %d", w.m.i, w.term.Token()) }

// hand is something that an operator did to a session.
type hand struct {
	what  deletion
	name  string // of the claim that was deleted, with its token
	token uint64
	until time.Duration // it explains nothing from then on; 0: what was asked for may still be under way
}

type deletion int

const (
	tookClaim  deletion = iota // deleted one claim
	tookRecord                 // deleted the session's record: its claims stand on until the store's lease has run out
	tookLease                  // ended the store's lease, and with it all that hangs on it
)

// handsLast is how long after the deletion an operator may be the reason for what is seen: until
// everybody's right has ended for want of renewals.
const handsLast = 20 * time.Second

// byHand notes that an operator is about to do away with a key of ours. The store breaks its
// promise there, and news of it needs time. Which is over is for done to say, or for healed.
func (r *rig) byHand(kv *mvccpb.KeyValue, with deletion) (done func()) {
	name, session, _ := strings.Cut(strings.TrimPrefix(string(kv.Key), "primacy/"), "/")
	session, _, _ = strings.Cut(session, "+") // behind it a claim says that its session has a heartbeat
	h := &hand{what: with, name: name, token: uint64(kv.CreateRevision)}
	switch {
	case name[0] != '@':
		h.what = tookClaim
	case with == tookClaim:
		h.what = tookRecord
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hands[session] = append(r.hands[session], h)
	r.lineLocked("by hand: the key %s (token %d) is deleted", kv.Key, kv.CreateRevision)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		h.until = r.now() + handsLast
	}
}

// healed notes that all faults are over, so that nothing which an operator asked for can be under
// way for long.
func (r *rig) healed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, all := range r.hands {
		for _, h := range all {
			if h.until == 0 {
				h.until = r.now() + handsLast
			}
		}
	}
}

// recent says whether the deletion may still be the reason for something.
func (h *hand) recent(now time.Duration) bool { return h.until == 0 || now < h.until }

// excusedLocked says whether an operator took the term's claim away, or its whole lease, so that
// the next one may lead before it has heard of it.
func (r *rig) excusedLocked(w *ledTerm) bool {
	for _, h := range r.hands[w.session] {
		one := h.what == tookClaim && h.name == w.term.Name() && h.token == uint64(w.term.Token())
		if h.recent(r.now()) && (one || h.what == tookLease) {
			return true
		}
	}
	return false
}

// lost is called when a term ended before its work was done. Only an operator can take a claim away
// from under it.
func (r *rig) lost(w *ledTerm) {
	cause := context.Cause(w.term.Context())
	r.logf("n%d loses %s (token %d): %v", w.m.i, w.term.Name(), w.term.Token(), cause)
	r.mu.Lock()
	defer r.mu.Unlock()
	w.lost = true
	touched := false // a claim that an operator deletes in the middle of a move ends the whole session
	for _, h := range r.hands[w.session] {
		touched = touched || h.recent(r.now())
	}
	if errors.Is(cause, ErrDeposed) && !touched {
		r.failLocked("%s: the claim of %v was taken away though no operator did it", w.term.Name(), w)
	}
}

func (r *rig) won(m *node, t *Term) *ledTerm {
	r.logf("n%d leads %s under token %d", m.i, t.Name(), t.Token())
	r.mu.Lock()
	w := &ledTerm{term: t, m: m, working: true, session: t.c.l.stored.ID(), at: r.now()}
	for _, old := range r.terms[t.Name()] {
		if old.term.Token() >= t.Token() && !r.excusedLocked(w) && t.Check() == nil {
			r.failLocked("%s: token %d leads after token %d", t.Name(), t.Token(), old.term.Token())
		}
	}
	r.terms[t.Name()] = append(r.terms[t.Name()], w)
	r.mu.Unlock()
	r.look()
	return w
}

func (r *rig) stopped(w *ledTerm) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w.working = false
	r.tally.terms++
	if w.lost {
		r.tally.lost++
	}
	r.lineLocked("n%d stops work on %s (token %d)", w.m.i, w.term.Name(), w.term.Token())
}

// poll looks every few milliseconds. What it finds it finds at an instant of fake time, in which
// nothing else moves on.
func (r *rig) poll(quit chan struct{}) {
	for {
		select {
		case <-quit:
			return
		case <-time.After(23 * time.Millisecond):
			r.look()
		}
	}
}

// look demands that of each name at most one Check says yes and one work runs, and that a Check
// that said no says no for ever.
func (r *rig) look() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, all := range r.terms {
		var live, work []*ledTerm
		for _, w := range all {
			if w.over && !w.working {
				continue
			}
			yes := w.term.Check() == nil
			if yes && w.over {
				r.failLocked("%s: %v: Check says yes after it has said no", name, w)
			}
			w.over = w.over || !yes
			if r.excusedLocked(w) {
				continue
			}
			if yes {
				live = append(live, w)
			}
			if w.working && !w.slept {
				work = append(work, w)
			}
		}
		if len(live) > 1 {
			r.failLocked("%s has two leaders: %v and %v", name, live[0], live[1])
		}
		if len(work) > 1 {
			r.failLocked("%s: work runs twice: %v and %v", name, work[0], work[1])
		}
	}
}

// asleep notes a suspend of m.
func (r *rig) asleep(m *node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, all := range r.terms {
		for _, w := range all {
			w.slept = w.slept || w.m == m
		}
	}
}

// judgeRecord looks at what history keeps of a term.
func (r *rig) judgeRecord(key string, value []byte) {
	_, key, _ = strings.Cut(key, "/")
	if _, d, _, ok := readRecord(driver.Record{Key: key, Value: value}); !ok || d.ID == "" || d.From.IsZero() {
		r.failf("a record that says nothing: %s: %s", key, value)
	}
}

func (r *rig) logf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lineLocked(format, args...)
}

func (r *rig) lineLocked(format string, args ...any) {
	r.lines = append(r.lines, fmt.Sprintf("%10.3fs  ", (r.now()-time.Hour).Seconds())+fmt.Sprintf(format, args...))
}

func (r *rig) failf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failLocked(format, args...)
}

// failLocked tells the first failures only: what follows is mostly the same one, seen at the next
// look.
func (r *rig) failLocked(format string, args ...any) {
	if r.bad++; r.bad > 3 {
		return
	}
	r.t.Errorf("seed %d, at %.3fs: %s", r.seed, (r.now() - time.Hour).Seconds(), fmt.Sprintf(format, args...))
	r.lineLocked("------->  "+format, args...)
}

func (r *rig) logger(i int) *slog.Logger {
	return slog.New(slog.NewTextHandler(logLine(func(line string) { r.logf("  n%d: %s", i, line) }),
		&slog.HandlerOptions{
			Level: slog.LevelDebug,
			ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == "id" {
					return slog.Attr{}
				}
				return a
			},
		}))
}

// logLine is a writer of one line at a time.
type logLine func(line string)

func (f logLine) Write(b []byte) (int, error) {
	f(strings.TrimSpace(string(b)))
	return len(b), nil
}

// report prints the timeline up to the last failure told.
func (r *rig) report() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bad == 0 {
		return
	}
	end := len(r.lines)
	for i, l := range r.lines {
		if strings.Contains(l, "------->") {
			end = i + 1
		}
	}
	from := max(0, end-120)
	for _, l := range r.lines[:from] {
		if strings.Contains(l, "by hand") {
			r.t.Log(l)
		}
	}
	r.t.Logf("again, though not to the bit: ETCD_SEED=%d ETCD_SEEDS=1 "+
		"go test -count=5 -run '^TestSimulatedCluster$' .\n"+
		"the last %d of %d lines:\n%s", r.seed, end-from, end, strings.Join(r.lines[from:end], "\n"))
}

// judged is a store whose renewals are judged by what stands in the cluster.
type judged struct {
	*etcdstore.Store
	r *rig
	m *node
}

func (s *judged) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := s.Store.Grant(ctx, owner, ttl)
	if err != nil {
		return nil, err
	}
	return &judgedLease{Lease: l, r: s.r, m: s.m}, nil
}

type judgedLease struct {
	driver.Lease
	r *rig
	m *node

	last int64 // the etcd lease that the record hung on at the last renewal that was accepted; only Renew uses it
}

// Renew demands of a renewal that is accepted: all claims of the session hang on the very lease
// that its record hangs on. Any other runs out though the caller believes it was renewed.
//
// A request of an earlier move may be carried out at any time, and moves the record alone. That
// shows in the record's mod revision, and harms nobody before the next renewal.
func (l *judgedLease) Renew(ctx context.Context) error {
	before, old := l.hanging()
	err := l.Lease.Renew(ctx)
	if err != nil {
		return err
	}
	after, now := l.hanging()
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	l.r.tally.renewals++
	if after != nil { // with a heartbeat a move is made beside the renewals
		if l.last != 0 && l.last != after.Lease {
			l.r.tally.moves++
		}
		l.last = after.Lease
	}
	if before == nil || after == nil || before.Lease != after.Lease {
		return nil
	}
	for key, kv := range now {
		was := old[key]
		if kv.Lease != after.Lease && was != nil && was.CreateRevision == kv.CreateRevision && was.Lease == kv.Lease &&
			before.ModRevision == after.ModRevision {
			l.r.failLocked("n%d: a renewal was accepted of lease %x, and the claim %s (token %d) hangs on %x", l.m.i,
				after.Lease, key, kv.CreateRevision, kv.Lease)
		}
	}
	return nil
}

// hanging returns the session's record, nil if there is none, and its claims.
func (l *judgedLease) hanging() (record *mvccpb.KeyValue, claims map[string]*mvccpb.KeyValue) {
	claims = map[string]*mvccpb.KeyValue{}
	for _, kv := range l.r.c.Keys("primacy/") {
		switch key := string(kv.Key); {
		case key == "primacy/@session/"+l.ID():
			record = kv
		case strings.HasSuffix(key, "/"+l.ID()):
			claims[key] = kv
		}
	}
	return record, claims
}
