package agent

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/server"
	"github.com/primacy-go/primacy/internal/boottime"
)

// lookLimit is how long the server may take to answer one look. One that takes longer in hangTries
// looks in a row hangs.
const lookLimit = time.Second

// A primary's WAL is flushed in each flushEvery-th look, about once a second, and at once again
// after a try that took longer than lookLimit. The disk hangs when hangTries in a row have.
const flushEvery, hangTries = 10, 3

// followLine tells the loop each change of the election.
func (a *Agent) followLine(ctx context.Context) {
	for ; ctx.Err() == nil; pause(ctx, a.cfg.LoopWait) { // it ends where the store refuses, which may pass
		for st, err := range a.election.Observe(ctx, primacy.WholeLine) {
			if err == nil { // else the last state is what is known
				a.send(ctx, func() { a.sawLine(ctx, st) })
			}
		}
	}
}

func (a *Agent) sawLine(ctx context.Context, st primacy.State) {
	line := &core.Line{}
	entries := st.Waiting
	if st.Leader != nil {
		line.Token, line.Leader = uint64(st.Leader.Token), st.Leader.ID
		entries = append([]primacy.Entry{*st.Leader}, entries...)
	}
	a.lease, a.gap.shown = "", false
	newer := a.seen.Line == nil || line.Token != a.seen.Line.Token
	for _, e := range entries {
		var said Said
		if json.Unmarshal(e.Value, &said) == nil {
			a.heard[e.ID] = said
			if e.Held && (said.Phase == core.PhaseLeading || said.Phase == core.PhasePaused) {
				a.last, a.gap.shown = core.Position{Timeline: said.Timeline, LSN: said.LSN}, true
			}
			newer = newer || said.Seq > seqOf(a.seen.Record)
		}
		if e.ID == a.cfg.Name { // the last one: an earlier one is of a former life
			a.lease = e.Lease
		}
		line.Members = append(line.Members, core.Standing{Name: e.ID, Answer: said.Answer})
	}
	hears(a)
	a.seen.Line = line
	if newer {
		a.read(ctx)
	}
}

// hears takes in what the others have heard of the primary, while that says nothing itself: what is
// known of it is the most that anybody has heard.
func hears(a *Agent) {
	if a.gap.shown || a.seen.Record == nil {
		return
	}
	r := a.seen.Record
	for _, said := range a.heard {
		h := core.Position{Timeline: said.HeardOn, LSN: said.Heard}
		if r.Heard(a.last).Before(r.Heard(h)) {
			a.last = h
		}
	}
}

// lastLSN returns where the WAL of the last primary ended, as it was heard; 0: not known.
func lastLSN(a *Agent) core.LSN {
	if r := a.seen.Record; r != nil && !a.gap.shown {
		return r.Heard(a.last).LSN
	}
	return a.last.LSN
}

// read reads the record. What is read while a newer term or record was seen is read again.
func (a *Agent) read(ctx context.Context) {
	if a.reading {
		a.stale = true
		return
	}
	a.reading, a.stale = true, false
	token, number := a.newest(), a.reads.Add(1)
	go func() {
		readCtx, cancel := context.WithTimeout(ctx, a.cfg.TTL)
		defer cancel()
		rec, lost, err := recordOf(readCtx, a)
		if err != nil {
			select { // the store does not answer
			case <-time.After(a.cfg.TTL / 20):
			case <-ctx.Done():
			}
		}
		a.send(ctx, func() {
			a.reading = false
			if err == nil {
				a.stale = !a.sawRecord(rec, lost, token, number) || a.stale
			} else {
				a.cfg.Log.Debug("read the record", "err", err)
			}
			if err != nil || a.stale {
				a.read(ctx)
			}
		})
	}()
}

// recordOf reads the record, or what was found in its place.
func recordOf(ctx context.Context, a *Agent) (rec *core.Record, lost *core.Lost, err error) {
	rec, err = a.record.Read(ctx)
	if errors.As(err, &lost) {
		err = nil
	}
	return rec, lost, err
}

// recordEvery is how often the record is read though nothing says that there is a newer one: nobody
// tells of a store that was wiped.
const recordEvery = 5 * time.Second

// followInstructions reads again and again what people ask of the cluster. Where the last read was
// fast, the first try is a short one: it finds out early that the member of the store which is
// asked was lost with a machine, and with it the watch on the election.
func (a *Agent) followInstructions(ctx context.Context) {
	var last time.Duration
	failed, fast := false, false
	short := max(a.cfg.TTL/6, 300*time.Millisecond)
	for ; ctx.Err() == nil; pause(ctx, a.cfg.LoopWait) {
		limit := a.cfg.TTL
		if fast {
			limit = short
		}
		began := time.Now()
		i, err := a.instructions(ctx, limit)
		if err != nil && fast {
			began = time.Now()
			i, err = a.instructions(ctx, a.cfg.TTL)
		}
		fast = err == nil && time.Since(began) < short/2
		if err != nil {
			if !failed {
				a.cfg.Log.Warn("what people ask of the cluster was not read", "err", err)
			}
			failed = true
			continue
		}
		failed = false
		now := boottime.Now()
		again := now-last > recordEvery
		if again {
			last = now
		}
		a.send(ctx, func() {
			a.storeSeen = now
			if i != nil {
				a.seen.Instructions = i
			}
			if again {
				a.read(ctx)
			}
		})
	}
}

func (a *Agent) instructions(ctx context.Context, limit time.Duration) (*core.Instructions, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return a.record.Instructions(ctx)
}

// sawRecord takes in what was read, for the largest token that was known when the read began.
// number counts reads in the order in which they began. What is read of a store that was wiped has
// smaller numbers and tokens than all before, and must be seen nevertheless. But reads overlap:
// that there is none any more, or an older one, is believed of a read that began when the last had
// come. It returns false where the read says nothing.
func (a *Agent) sawRecord(rec *core.Record, lost *core.Lost, token, number uint64) bool {
	if number < a.readNumber || number <= a.readBefore && seqOf(rec) < seqOf(a.seen.Record) {
		return false
	}
	if a.readNumber, a.readBefore = number, a.reads.Load(); number <= a.readsWon {
		token = 0
	}
	a.seen.Record, a.seen.Lost, a.seen.Read, a.seen.ReadFor = rec, lost, true, max(token, a.seen.ReadFor)
	hears(a)
	// What is copied from a former primary is of no use under another one, and that one may wait
	// for this member, while the former, frozen, keeps the copy waiting.
	if none := (core.Identity{}); a.copied != none && rec != nil && rec.Primary != a.copied {
		a.copied = none
		a.cancel()
	}
	return true
}

// newest returns the largest token that was seen, but for the record's.
func (a *Agent) newest() uint64 {
	var own uint64
	if a.term != nil {
		own = uint64(a.term.Token())
	}
	return core.Newest(a.seen.Line, nil, own)
}

// lookAgain looks at the server again and again.
func (a *Agent) lookAgain(ctx context.Context) {
	for ctx.Err() == nil {
		seen := a.ask(ctx)
		pause := make(chan time.Duration, 1)
		a.send(ctx, func() {
			a.sawServer(seen)
			pause <- a.pace()
		})
		var gone <-chan struct{}
		if p, ok := a.server.Running(); ok {
			gone = p.Done()
		}
		select {
		case <-time.After(<-pause):
		case <-gone:
		case <-ctx.Done():
		}
	}
}

// pace is how long until the next look.
func (a *Agent) pace() time.Duration {
	if a.seen.Server.Primary || !a.seen.Server.Running {
		return 100 * time.Millisecond
	}
	return a.cfg.LoopWait
}

// seenServer is one look at the server.
type seenServer struct {
	server core.Server
	number uint64 // of the looks, in the order in which they began
	at     core.Position

	began   time.Duration
	process server.Process // nil: none runs
	up      bool           // it answered by SQL
}

func (a *Agent) sawServer(s seenServer) {
	if s.number < a.looked {
		return // a later look has come before
	}
	a.looked = s.number
	if !s.server.Running {
		a.ssn.forget()
	} else if last := a.seen.Server; last.Running {
		s.server.Proven, s.server.Checkpointed = last.Proven, last.Checkpointed
		if s.server.Primary {
			s.server.LSN = max(s.server.LSN, last.LSN) // it was read after the proof
		}
	}
	for i := range s.server.Senders {
		x := &s.server.Senders[i]
		said, heard := a.heard[x.Name]
		votes := a.seen.Record != nil && slices.Contains(a.seen.Record.Voters, x.Identity)
		x.NoSync = said.NoSync || !heard && !votes // a newcomer that has not said whether it may vote
		x.Priority, x.NoFailover = said.Priority, said.NoFailover
	}
	a.seen.Server = s.server
	if s.up || s.process == nil || s.process != a.answered.process {
		a.answered = s
	}
	if s.at.LSN != 0 {
		a.at = s.at
	}
}

// ask looks at the server.
func (a *Agent) ask(ctx context.Context) (s seenServer) {
	s.number, s.began = a.looks.Add(1), boottime.Now()
	there, answered := a.directory.look(ctx)
	s.server.Data, s.server.Directory, s.server.SystemID = there.data, there.identity, there.systemID
	p, ok := a.server.Running()
	if !ok {
		return s
	}
	s.server.Running, s.process = true, p
	if !answered {
		s.server.Hung = a.silent.Add(1) >= hangTries
		return s
	}
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	at, err := a.server.Position(ctx)
	switch {
	case errors.Is(err, server.ErrNotUp):
		a.silent.Store(0)
		return s
	case err != nil && ctx.Err() == nil: // it answers, if only that it cannot
		return s
	case err != nil:
		s.server.Hung = a.silent.Add(1) >= hangTries
		return s
	}
	a.silent.Store(0)
	s.at, s.up = at.Position, true
	s.server.Primary, s.server.Timeline, s.server.Follows = at.Primary, at.Timeline, at.Streams
	if !at.Primary {
		// What was received may end in the middle of a record, and half a record is none after a
		// restart.
		s.server.Reached = core.Position{Timeline: at.Timeline, LSN: at.Replayed}
		if at.Waits == "RecoveryPause" { // by itself, or somebody has paused it
			s.server.Short, _ = a.server.Short(ctx) // asked again by the next look
		}
		return s
	}
	s.server.LSN = at.LSN
	senders, err := a.server.Senders(ctx)
	if err != nil {
		return s
	}
	for _, x := range senders {
		if name, inc, ok := strings.Cut(x.Name, "@"); ok && x.State == "streaming" {
			s.server.Senders = append(s.server.Senders, core.Sender{Flushed: x.Flushed,
				Counts:   x.Kind == "quorum" || x.Kind == "sync",
				Identity: core.Identity{Name: name, Incarnation: inc}})
		}
	}
	if s.number%flushEvery == 0 || a.unflushed.Load() > 0 {
		upto, hangs := a.flush(ctx)
		if s.server.Hung = hangs; upto > 0 {
			s.server.Reached = core.Position{Timeline: at.Timeline, LSN: upto}
		}
	}
	if waiting, err := a.server.Waiting(ctx); err == nil {
		s.server.Waiting = a.waits.longest(boottime.Now(), waiting)
	}
	return s
}

// flush returns up to where the WAL is on disk. hangs says that it was not flushed in several
// looks: a server whose disk hangs answers queries from memory, and acknowledges nothing.
func (a *Agent) flush(ctx context.Context) (upto core.LSN, hangs bool) {
	upto, err := a.server.Flush(ctx)
	if err == nil {
		a.unflushed.Store(0)
		return upto, false
	}
	return 0, a.unflushed.Add(1) >= hangTries
}

func (a *Agent) sawProof(p *proof, at core.LSN) {
	if !a.ssn.done(p) {
		return // the server has ended, or another SSN was set
	}
	a.former = p.sync.Names
	a.seen.Server.Proven, a.seen.Server.LSN = p.id, max(at, a.seen.Server.LSN)
}

// lookForPrimary looks whether the cluster has a primary.
func lookForPrimary(a *Agent, order *core.Order) {
	var heard time.Duration
	if d := a.Details(); d != nil && d.HeardAgo >= 0 {
		heard = d.At - d.HeardAgo
	}
	if a.answered.server.Primary { // it was itself
		heard = max(heard, a.answered.began)
	}
	a.gap.look(boottime.Now(), a.storeSeen, heard)
	if order == nil {
		return
	}
	if w, ok := order.Do.(core.Write); ok && a.seen.Record != nil && w.Record.Token != a.seen.Record.Token {
		a.gap.clean = a.seen.Record.Stopped > 0 // it names who is to be promoted now
	}
}
