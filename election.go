package primacy

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/core"
	pauses "github.com/primacy-go/primacy/pause"
)

// Election is a name that at most one candidate leads at a time: the leader has a [Term]. It is
// safe for concurrent use.
type Election struct {
	s    *Session
	name string
}

// Name returns the election's name.
func (e *Election) Name() string { return e.name }

// CampaignOptions are for one campaign, or for all of a [Candidate]. The zero value works.
type CampaignOptions struct {
	// Value is what observers see; it is copied. Election.Restate replaces it, also while the
	// candidate waits; Term.Proclaim replaces it for one term.
	Value []byte
	// Priority lets this candidate take the lead from a leader whose priority is smaller. Once it
	// has stood in the line for Steady, under the same leader, it asks that leader to hand over,
	// and asks again each time Steady has passed. A leader with a smaller priority stops its work
	// and hands over to this candidate, ahead of those who came earlier. A leader with the same or
	// a larger priority leads on. So does one that another program has entered, since it does not
	// listen. Not negative. With 0, the default, this candidate never asks.
	//
	// The store does not know priorities. So after a crash the oldest candidate leads first, and
	// hands over later. If an operator moves the lead away from a candidate with a priority, it
	// takes the lead back after Steady.
	Priority int
	// Steady is how long the candidate stands before it asks. Default three times the TTL.
	Steady time.Duration
	// Health, if not nil, keeps this candidate out of the line while it is unhealthy, and has it
	// hand over what it leads.
	Health *Health
	// ObeyPauses has the candidate read, once it has won and before the term begins, whether an
	// operator has paused the election so that nobody new is elected (package pause). If so, or if
	// the pauses cannot be read, it gives the term back, waits for the end of the pause, and stands
	// again. Without it such a pause does not bind this candidate. That a leader does not give way
	// to a larger priority while the election is paused needs no option.
	ObeyPauses bool
}

// Campaign stands in the line for the name and returns when this process leads; nil options are the
// zero value. If ctx ends before that, Campaign returns its cause at once, and gives its place in
// the line up in the background. If it loses its place while it waits, with the lease or without,
// it stands again at the end of the line. Campaigns of one process for one name wait for each
// other. A store that does not answer is asked until ctx ends (ErrUnreachable); ErrRefused is
// returned at once.
//
// The answer may be old by the time it arrives: ask [Term.Check] before each act. The caller
// resigns the term once its work has stopped; for the loop around that see [Candidate].
func (e *Election) Campaign(ctx context.Context, opts *CampaignOptions) (_ *Term, err error) {
	var o CampaignOptions
	if opts != nil {
		o = *opts
	}
	if err := errors.Join(CheckName(e.name), checkValue(o.Value)); err != nil {
		return nil, err
	}
	if err := e.s.checkReentry(ctx, e.name, 0); err != nil {
		return nil, err
	}
	if o.Priority < 0 || o.Steady < 0 {
		return nil, invalid("campaign for %s: priority %d and steady %v must not be negative", e.name, o.Priority, o.Steady)
	}
	if o.Health != nil && o.Health.s != e.s {
		return nil, invalid("campaign for %s: its health is another session's", e.name)
	}
	began := e.s.uptime()
	spec := claimSpec{value: bytes.Clone(o.Value), priority: o.Priority, began: began,
		observers: e.s.electionObservers}
	if o.Priority > 0 {
		if err := e.canAskToLead(ctx); err != nil {
			return nil, err
		}
		spec.askToLead = e.askToLead(o.Priority, cmp.Or(o.Steady, 3*e.s.o.TTL), o.Health)
	}
	own, drop := e.s.announced.use(e.name) // Session.campaign uses them too, while the claim has its seat
	defer drop()
	spec.sharedAnnouncements = own
	e.s.readers.publish(Event{Kind: CampaignBegun, Name: e.name})
	g := gate{s: e.s, name: e.name, health: o.Health, pauses: o.ObeyPauses}
	err = errNoReturn
	defer func() {
		if err != nil {
			e.s.notWon(e.name, began, err)
		}
	}()
	return g.campaign(ctx, spec)
}

// Restate replaces the value of this session's claim, which waits or leads; the place in the line
// and the token stay. It returns nil once the store has confirmed the value, or one that a later
// call gave.
//
// The value counts from the call on, also if the call fails. Only if the store refuses it
// (ErrRefused), the value before it counts again. Each claim that this session enters for the name
// has it in place of CampaignOptions.Value. A claim whose entry is under way gets it afterwards. So
// no older value is shown when a claim is lost and entered again, or when a [Candidate] campaigns
// again. The value is forgotten once this session has no campaign, candidate or term for the name
// any more. A later [Term.Proclaim] hides the value for the rest of that term.
//
// The last call wins. The calls of one process reach the store one after another, and a call that
// fails is repeated with the latest value. The store may carry out late a call whose answer was
// lost: on PostgreSQL, Redis and a majority of Redis servers even after the next one, as the port
// allows (see driver.Lease).
//
// While there is no claim, because the campaign waits for a lease or for another campaign of this
// process, Restate waits. When ctx ends before the store has confirmed, the error is
// ErrUnreachable, and the value is brought to the store in the background. ErrNotInLine says that
// nothing of this session campaigns for the name or leads it. Locks do not count, nor do names of
// [Elections], which all show one value.
func (e *Election) Restate(ctx context.Context, value []byte) error {
	if err := errors.Join(CheckName(e.name), checkValue(value)); err != nil {
		return err
	}
	what := "restate " + e.name
	if ctx.Err() != nil {
		return ctxEnded(ctx, what, nil) // and nothing was announced
	}
	own := e.s.announced.find(e.name)
	if own == nil {
		return notInLine(what)
	}
	n := own.restate(value)
	e.s.showAt(seat{name: e.name})
	return own.wait(ctx, what, n)
}

// Proclaim replaces the value that observers see, until the term ends. It returns once the store
// has confirmed it, or one that a later call gave. When ctx ends before that, the error is
// ErrUnreachable, and the value is brought to the store in the background. Once the term is over
// Proclaim returns why.
func (t *Term) Proclaim(ctx context.Context, value []byte) error {
	if err := checkValue(value); err != nil {
		return err
	}
	if err := t.Check(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctxEnded(ctx, "proclaim "+t.c.name, nil) // and nothing was announced
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(t.contexts().right, cancel)()
	own, n, err := announcer{t.c}.proclaim(t, value)
	if err != nil {
		return err
	}
	err = own.wait(ctx, "proclaim "+t.c.name, n)
	if over := t.Check(); err != nil && over != nil {
		return over
	}
	return err
}

// Entry is one claim in a line.
type Entry struct {
	ID    string // of its session; empty for a claim that another program entered
	Token Token
	Slots int  // of a lock: 0 exclusive, n a semaphore's, Unlimited a reader's
	Held  bool // it leads, or holds the lock, perhaps together with others
	Value []byte
	Lease string // the store's name for its lease
	Note  string // what is unusual about it, in words
}

// State is an election as the store showed it.
type State struct {
	Name     string
	Leader   *Entry // nil: nobody leads
	Waiting  []Entry
	Revision uint64    // grows with each change of the line; comparable for one name only
	AsOf     time.Time // when the store's answer came
}

// Leader returns who led at some instant during the call, or ErrNoLeader. It needs no lease. It
// asks until the store answers or ctx ends (ErrUnreachable).
func (e *Election) Leader(ctx context.Context) (Entry, error) {
	st, err := e.State(ctx)
	if err != nil {
		return Entry{}, err
	}
	if st.Leader == nil {
		return Entry{}, ErrNoLeader
	}
	return *st.Leader, nil
}

// Paused returns what an operator has paused that the election is under, nil if there is nothing:
// see package pause. The rules are those of [Election.Leader].
func (e *Election) Paused(ctx context.Context) (p *pauses.Pause, err error) {
	if err := CheckName(e.name); err != nil {
		return nil, err
	}
	err = e.s.retry(ctx, "read the pauses", func(ctx context.Context) (err error) {
		p, err = pauses.Of(ctx, e.s.store, e.name)
		return err
	})
	return p, err
}

// State returns the whole line. The rules are those of [Election.Leader].
func (e *Election) State(ctx context.Context) (State, error) {
	if err := CheckName(e.name); err != nil {
		return State{}, err
	}
	var st State
	err := e.s.retry(ctx, "read "+e.name, func(ctx context.Context) error {
		line, err := e.s.store.Line(ctx, e.name)
		st = stateOf(line)
		return err
	})
	return st, err
}

// freshness is how long Observe waits for a push before it reads the line: a push may be lost.
const freshness = 15 * time.Second

// answersAgain is the same while the store does not answer: where nothing has changed, only a read
// shows that it answers again.
const answersAgain = time.Second

// ObserveOptions say which changes [Election.Observe] yields.
type ObserveOptions int

// WholeLine has Observe yield each change of the line too: a claim enters or leaves, or says
// something new of itself ([Election.Restate]). Without it Observe yields changes of the leader.
//
// It costs no more calls: without it too, Observe reads the whole line after each change of it.
// Where the store pushes changes (driver.Caps.Push; etcd by a watch) they are told within
// milliseconds, elsewhere as often as the store polls. If each of n candidates says something new,
// each observer reads a line of n claims n times: mind that where there are hundreds. A store that
// does not show who waits (redlockstore) tells of the leader only. Priorities are not in the store,
// so they are not in the states: a candidate can put its own into its value.
const WholeLine ObserveOptions = 1

// HeedPauses has Observe read what operators have paused (package pause) each time the leader
// changes. In a pause in which nobody new is elected the store shows whoever is next in the line as
// the leader, for the moment that it takes to give the place back. Then Observe yields that nobody
// leads. One that an operator has named it yields at once, and any other after 3 s: that is a
// candidate that does not obey pauses. If the pauses cannot be read it yields whom the store shows.
// Beside WholeLine it changes nothing.
const HeedPauses ObserveOptions = 2

// Observe follows who leads: first the present state, then each change of the leader or of its
// value, or with [WholeLine] of the whole line, until ctx ends or the caller stops. A slow caller
// misses states that are over, never the latest. While the store does not answer, Observe yields
// the last known state once, with ErrUnreachable, and the state again within some 2 s of the first
// answer. After ErrRefused or ErrInvalid it ends. It runs on the caller's goroutine.
func (e *Election) Observe(ctx context.Context, o ...ObserveOptions) iter.Seq2[State, error] {
	same := sameLeaders
	if slices.Contains(o, WholeLine) {
		same = sameLines
	}
	return e.observe(ctx, same, func(State) {}, slices.Contains(o, HeedPauses) && !slices.Contains(o, WholeLine))
}

// observe is Observe. It yields a state where same(old, new) is false; seen gets every state.
func (e *Election) observe(ctx context.Context, same func(a, b State) bool, seen func(State), heed bool,
) iter.Seq2[State, error] {
	return func(yield func(State, error) bool) {
		if err := CheckName(e.name); err != nil {
			yield(State{Name: e.name}, err)
			return
		}
		last, known, down := State{Name: e.name}, false, false
		n := newcomer{e: e}
		var behind olderAnswers
		for try := 1; ctx.Err() == nil; {
			wait := n.wait()
			if down {
				wait = min(wait, answersAgain)
			}
			st, err := e.next(ctx, last.Revision, wait)
			if ctx.Err() != nil {
				return
			}
			if isRefusal(err) {
				yield(last, err)
				return
			}
			if err != nil {
				err = fmt.Errorf("primacy: observe %s: %w: %w", e.name, ErrUnreachable, err)
				if !down && !yield(last, err) || pause(ctx, try) != nil {
					return
				}
				down = true
				try++
				continue
			}
			if behind.passes(known && st.Revision < last.Revision && !e.s.store.Caps().LinesRestart) {
				continue
			}
			seen(st)
			if heed && !n.leads(ctx, &st) && !known {
				last.Revision = st.Revision // whether anybody leads is told when it is known
				continue
			}
			changed := !known || down || !same(st, last)
			last, known, down, try = st, true, false, 1
			if changed && !yield(st, nil) {
				return
			}
		}
	}
}

// olderAnswers is since when the store's answers are older than what is known; zero: they are not.
type olderAnswers struct{ since time.Time }

// passes says whether to pass over an answer. An older one is passed over, unless that lasts: then
// the store was restored from a backup.
func (o *olderAnswers) passes(older bool) bool {
	switch {
	case !older:
		o.since = time.Time{}
	case o.since.IsZero():
		o.since = time.Now()
		return true
	}
	return older && time.Since(o.since) < freshness
}

// newcomer keeps a leader back that may have to give its place back: see HeedPauses.
type newcomer struct {
	e     *Election
	led   *Entry    // the leader that was told last
	held  *Entry    // the one that is kept back; nil: none
	until time.Time // then it leads
}

// settled is how long a newcomer has to have led, in a pause in which nobody new is elected, before
// it counts as one that does not obey pauses.
const settled = 3 * time.Second

// wait returns how long to wait for the next line.
func (n *newcomer) wait() time.Duration {
	if n.held == nil {
		return freshness
	}
	return max(time.Until(n.until), time.Millisecond)
}

// leads says whether the leader of st leads, or nobody does. If not, st has none afterwards.
func (n *newcomer) leads(ctx context.Context, st *State) bool {
	l := st.Leader
	is := func(e *Entry) bool { return e != nil && e.Token == l.Token && e.Lease == l.Lease }
	switch {
	case l == nil || l.ID == "" || l.Slots != 0 || is(n.led):
	case is(n.held) && time.Now().Before(n.until):
		st.Leader = nil
		return false
	case is(n.held):
	default:
		r, err := n.e.s.pauses.Since(ctx, time.Now())
		if err != nil || r.Forbids(n.e.name, l.ID, uint64(l.Token)) == nil {
			break
		}
		n.held, n.until = l, time.Now().Add(settled)
		st.Leader = nil
		return false
	}
	n.led, n.held = l, nil
	return true
}

// next waits for a line newer than after (a State.Revision). If none comes in time it reads the
// line: an error then says that the store does not answer.
func (e *Election) next(ctx context.Context, after uint64, limit time.Duration) (State, error) {
	waitCtx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	line, err := e.s.store.Next(waitCtx, e.name, after)
	if err == nil {
		return stateOf(line), nil
	}
	if waitCtx.Err() == nil || ctx.Err() != nil {
		return State{}, err
	}
	readCtx, cancel := context.WithTimeout(ctx, freshness/3)
	defer cancel()
	line, err = e.s.store.Line(readCtx, e.name)
	return stateOf(line), err
}

func sameLeader(a, b *Entry) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Token == b.Token && a.ID == b.ID && string(a.Value) == string(b.Value)
}

func sameLeaders(a, b State) bool { return sameLeader(a.Leader, b.Leader) }

// sameLines says whether two states show the same claims in the same order, with the same values.
func sameLines(a, b State) bool {
	same := func(a, b Entry) bool { return sameLeader(&a, &b) && a.Held == b.Held && a.Slots == b.Slots }
	return sameLeaders(a, b) && slices.EqualFunc(a.Waiting, b.Waiting, same)
}

func stateOf(l driver.Line) State {
	st := State{Name: l.Name, Revision: l.Revision, AsOf: time.Now()}
	if l.Holder != nil {
		h := entryOf(*l.Holder)
		st.Leader = &h
	}
	for _, w := range l.Waiters {
		st.Waiting = append(st.Waiting, entryOf(w))
	}
	st.noteDuplicates()
	return st
}

// noteDuplicates notes which claims have one ID under several leases: those of two processes, or of
// one before and after a restart.
func (st *State) noteDuplicates() {
	if st.Leader == nil || len(st.Waiting) == 0 {
		return
	}
	first := map[string]*Entry{st.Leader.ID: st.Leader}
	note := func(e *Entry, lease string) {
		if e.Note != "" {
			e.Note += "; "
		}
		e.Note += "lease " + lease + " has the same ID"
	}
	for i := range st.Waiting {
		w := &st.Waiting[i]
		switch other := first[w.ID]; {
		case other == nil:
			first[w.ID] = w
		case w.ID != "" && w.Lease != other.Lease:
			note(w, other.Lease)
			if !strings.Contains(other.Note, "has the same ID") {
				note(other, w.Lease)
			}
		}
	}
}

func entryOf(s driver.Entry) Entry {
	return Entry{ID: s.Owner, Token: Token(s.Token), Slots: s.Slots, Held: s.Held, Value: s.Value,
		Lease: s.Lease, Note: s.Note}
}

// Election returns the election of that name. It does no I/O; a name that cannot be used is told by
// the first call.
func (s *Session) Election(name string) *Election { return &Election{s: s, name: name} }

// List returns the elections whose name begins with prefix and in whose line somebody stands,
// ordered by name. It needs no lease.
func (s *Session) List(ctx context.Context, prefix string) ([]State, error) {
	var states []State
	err := s.retry(ctx, "list "+prefix, func(ctx context.Context) error {
		lines, err := s.store.Lines(ctx, prefix)
		states = nil
		for _, l := range lines {
			states = append(states, stateOf(l))
		}
		return err
	})
	return states, err
}

// canAskToLead returns an error if the store cannot carry the request of a candidate with a
// priority. Only a lease tells whether the store can hand over, so it grants one if there is none.
func (e *Election) canAskToLead(ctx context.Context) error {
	l, err := e.s.liveLease(ctx) // the campaign has the same one, unless it ends before
	if err != nil {
		return err
	}
	_, carries := e.s.store.(driver.Asker)
	if _, handsOver := l.stored.(driver.Transferer); !carries || !handsOver {
		return invalid("campaign for %s: a priority needs a store in which a leader can be asked to hand over; %s cannot",
			e.name, e.s.store.Caps().Store)
	}
	return nil
}

// askToLead returns the loop that asks leaders to hand over to a claim while it waits. It reads the
// line four times in steady. core.Press decides when to ask: once claim and leader have had the
// same tokens at each reading for steady. No token is given twice, so the claim has kept its place
// in between. H, if not nil, says whether the priority counts.
func (e *Election) askToLead(priority int, steady time.Duration, h *Health) func(context.Context, *claim) {
	s, asker := e.s, e.s.store.(driver.Asker)
	return func(ctx context.Context, c *claim) {
		for p := (core.Press{Steady: steady}); ctx.Err() == nil; {
			limit, cancel := context.WithTimeout(ctx, c.l.timing.TTL)
			st, err := e.State(limit)
			now := s.clock()
			wake := now + max(steady/4, time.Second)
			if err == nil {
				var ask bool
				mine, leader := st.tokens(c)
				ask, wake = p.Step(now, mine, leader) // a request that is lost is repeated after steady
				if ask && h.presses() {
					_ = asker.Ask(limit, e.name, driver.Request{Token: leader, By: s.o.ID, To: s.o.ID,
						Priority: priority, Reason: fmt.Sprintf("priority %d", priority)})
				}
			}
			cancel()
			select {
			case <-time.After(wake - now):
			case <-ctx.Done():
			}
		}
	}
}

// tokens returns the claim's token as mine, and the leader's. Mine is 0 if the leader could not
// hand over to this claim: it does not wait, or it is not the oldest of its session. Leader is 0 if
// nobody leads, or one who takes no requests.
func (st State) tokens(c *claim) (mine, leader uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	own, _ := st.oldestOf(c.l.s.o.ID)
	if c.core.Phase() == core.Waiting && own.Token == Token(c.place.Token) {
		mine = c.place.Token
	}
	if st.Leader != nil && st.Leader.ID != "" && st.Leader.Slots == 0 {
		leader = uint64(st.Leader.Token)
	}
	return mine, leader
}

// oldestOf looks for claims of the session with that ID that wait to lead. It returns the oldest,
// or false if there is none.
func (st State) oldestOf(id string) (Entry, bool) {
	i := slices.IndexFunc(st.Waiting, func(s Entry) bool { return s.ID == id && s.Slots == 0 && s.Token != 0 })
	if i < 0 {
		return Entry{}, false
	}
	return st.Waiting[i], true
}
