package shards

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/internal/safety"
	"github.com/primacy-go/primacy/memstore"
)

// world is a group in fake time on a store in memory. Each owner of a shard acts each 20 ms, and
// the record of all acts is judged in the end.
type world struct {
	t     *testing.T
	n     int
	store *memstore.Store
	born  time.Time

	mu     sync.Mutex
	acts   map[string][]safety.Act // by shard
	lost   map[string]int          // how often a handler's context ended, by why
	begun  map[string]time.Time    // when the present owner of a shard began
	late   map[string]bool         // members whose handlers do not return while this is set
	fails  map[string]bool         // members whose handlers return an error at once
	calls  int
	member map[string]*running
}

// running is one member.
type running struct {
	g       *Group
	session *primacy.Session
	stop    context.CancelCauseFunc
	done    chan struct{}
	err     error
}

func inWorld(t *testing.T, shards int, f func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, n: shards, store: memstore.New(memstore.Options{}), born: time.Now(),
			acts: map[string][]safety.Act{}, lost: map[string]int{}, begun: map[string]time.Time{},
			late: map[string]bool{}, fails: map[string]bool{}, member: map[string]*running{}}
		defer w.end()
		f(t, w)
	})
}

// end stops all members and judges what they did: never two owners, tokens that grow.
func (w *world) end() {
	w.mu.Lock()
	clear(w.late)
	w.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(w.member)) {
		w.member[id].stop(nil)
	}
	for _, m := range w.member {
		<-m.done
		_ = m.session.Close(context.Background())
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var history []safety.Interval
	for name, acts := range w.acts {
		terms, _ := safety.Terms(name, acts, 0)
		history = append(history, terms...)
	}
	if err := safety.Check(history); err != nil {
		w.t.Error(err)
	}
	if len(history) == 0 && w.calls > 0 {
		w.t.Error("no owner ever acted")
	}
	time.Sleep(time.Minute) // leases that were left to run out end their goroutines
}

// join starts a member. Its session is new.
func (w *world) join(id string, o Options) *running {
	w.t.Helper()
	s, err := primacy.NewSession(w.store, &primacy.Options{ID: id, TTL: 5 * time.Second, Overrun: primacy.OverrunWait})
	if err != nil {
		w.t.Fatal(err)
	}
	return w.joinOn(s, w.n, id, o)
}

func (w *world) joinOn(s *primacy.Session, n int, id string, o Options) *running {
	w.t.Helper()
	o.Logger = slog.New(slog.NewTextHandler(w.t.Output(), nil)).With("member", id)
	g, err := New(s, "tenants", n, &o)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, stop := context.WithCancelCause(context.Background())
	m := &running{g: g, session: s, stop: stop, done: make(chan struct{})}
	w.member[id] = m
	go func() {
		defer close(m.done)
		m.err = g.Run(ctx, func(ctx context.Context, s *Shard) error { return w.own(ctx, id, s) })
	}()
	return m
}

var errHandler = errors.New("the handler has failed")

// own is the handler: it acts until its context ends.
func (w *world) own(ctx context.Context, id string, s *Shard) error {
	name := s.Term.Name()
	w.mu.Lock()
	w.calls++
	fails := w.fails[id]
	w.begun[name] = time.Now()
	w.mu.Unlock()
	if fails {
		return errHandler
	}
	act := func() {
		if s.Term.Check() == nil {
			w.mu.Lock()
			at := time.Since(w.born)
			w.acts[name] = append(w.acts[name], safety.Act{At: at, Token: uint64(s.Term.Token()), Who: id})
			w.mu.Unlock()
		}
	}
	for ctx.Err() == nil {
		act()
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	w.mu.Lock()
	w.lost[string(primacy.ReasonOf(context.Cause(ctx)))]++
	w.mu.Unlock()
	for late := true; late; { // a handler that is slow to stop still acts
		act()
		w.mu.Lock()
		late = w.late[id]
		w.mu.Unlock()
		time.Sleep(20 * time.Millisecond)
	}
	return ctx.Err()
}

// moves is how many shards went from one living member to another so far.
func (w *world) moves() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost[string(primacy.Transferred)]
}

// status reads the group.
func (w *world) status() Status {
	w.t.Helper()
	s, err := primacy.NewSession(w.store, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	st, err := Read(context.Background(), s, "tenants")
	if err != nil {
		w.t.Fatal(err)
	}
	return st
}

// owns counts the shards of each member.
func (w *world) owns() map[string]int {
	w.t.Helper()
	n := map[string]int{}
	for _, o := range w.status().Shards {
		n[o.ID]++
	}
	return n
}

func (w *world) wantOwns(want map[string]int) {
	w.t.Helper()
	if got := w.owns(); !maps.Equal(got, want) {
		w.t.Errorf("after %v the members own %v, want %v", time.Since(w.born), got, want)
	}
}

// crash cuts a member off from the store, as the death of its machine does; its process goes on.
func (w *world) crash(id string) {
	w.store.Partition(id, true)
}

func TestMembersJoin(t *testing.T) {
	inWorld(t, 48, func(t *testing.T, w *world) {
		w.join("a", Options{})
		w.join("b", Options{})
		w.join("c", Options{})
		time.Sleep(2 * time.Second)
		w.wantOwns(map[string]int{"a": 16, "b": 16, "c": 16})
		if n := w.moves(); n != 0 {
			t.Errorf("%d shards moved at the start", n)
		}
		if st := w.status(); st.Moves == nil {
			t.Error("JSON has null for no moves")
		}
		w.join("d", Options{})
		time.Sleep(10 * time.Second)
		w.wantOwns(map[string]int{"a": 12, "b": 12, "c": 12, "d": 12})
		if n := w.moves(); n != 12 {
			t.Errorf("%d shards moved for a fourth member, want 12", n)
		}
	})
}

func TestAMemberLeaves(t *testing.T) {
	inWorld(t, 30, func(t *testing.T, w *world) {
		a := w.join("a", Options{})
		w.join("b", Options{})
		w.join("c", Options{})
		time.Sleep(3 * time.Second)
		began := time.Now()
		a.stop(nil)
		<-a.done
		if took := time.Since(began); a.err != nil || took > DefaultLeaveTimeout {
			t.Errorf("Run returned %v after %v", a.err, took)
		}
		w.wantOwns(map[string]int{"b": 15, "c": 15})
		if n := w.moves(); n != 10 {
			t.Errorf("%d shards were handed over by the member that left, want 10", n)
		}
	})
}

func TestTheLastMemberLeavesAtOnce(t *testing.T) {
	inWorld(t, 30, func(t *testing.T, w *world) {
		a, b := w.join("a", Options{}), w.join("b", Options{})
		time.Sleep(3 * time.Second)
		began := time.Now()
		a.stop(nil)
		b.stop(nil)
		<-a.done
		<-b.done
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("all members leave, and that took %v", took)
		}
		time.Sleep(time.Second) // Run does not wait for the release of a place that was not first
		lines, err := w.store.Lines(context.Background(), "tenants")
		if err != nil || len(lines) != 0 {
			t.Errorf("left in the store: %v, %v", lines, err)
		}
	})
}

func TestAMemberCrashes(t *testing.T) {
	inWorld(t, 30, func(t *testing.T, w *world) {
		for _, id := range []string{"a", "b", "c"} {
			w.join(id, Options{})
		}
		time.Sleep(3 * time.Second)
		w.crash("b")
		time.Sleep(5*time.Second + time.Second) // the TTL, and a second
		w.wantOwns(map[string]int{"a": 15, "c": 15})
		if n := w.moves(); n != 0 {
			t.Errorf("%d shards of members that live moved", n)
		}
		w.store.Partition("b", false)
		time.Sleep(15 * time.Second)
		w.wantOwns(map[string]int{"a": 10, "b": 10, "c": 10})
	})
}

// assignerOf returns who leads the group.
func (w *world) assigner() string { return w.status().Assigner }

// TestTheAssignerIsLostInTheMiddleOfMoves: no shard is lost with it, and the next one goes on.
func TestTheAssignerIsLostInTheMiddleOfMoves(t *testing.T) {
	inWorld(t, 40, func(t *testing.T, w *world) {
		for _, id := range []string{"a", "b", "c"} {
			w.join(id, Options{})
		}
		time.Sleep(3 * time.Second)
		late := func(to bool) {
			w.mu.Lock()
			defer w.mu.Unlock()
			for _, id := range []string{"a", "b", "c"} {
				w.late[id] = to
			}
		}
		late(true) // so that the move is under way for long
		w.join("d", Options{})
		time.Sleep(2 * time.Second)
		if st := w.status(); len(st.Moves) != 1 || !st.Moves[0].Asked {
			t.Fatalf("moves %+v", st.Moves)
		}
		first := w.assigner()
		before := w.owns()
		w.crash(first)
		time.Sleep(3 * time.Second) // nobody assigns: its lease runs out 4 to 5 s after the last renewal
		if got := w.owns(); got[""] != 0 {
			t.Errorf("%d shards have no owner, since nobody assigns: %v, before %v", got[""], got, before)
		}
		late(false)
		time.Sleep(20 * time.Second)
		got := w.owns()
		if w.assigner() == first || got[first] != 0 || got[""] != 0 || got["d"] != 13 && got["d"] != 14 {
			t.Errorf("the assigner is %s, the members own %v", w.assigner(), got)
		}
	})
}

// TestAHandlerThatIsSlowToStop: while it runs its shard goes to nobody, and nobody else owns it.
func TestAHandlerThatIsSlowToStop(t *testing.T) {
	inWorld(t, 8, func(t *testing.T, w *world) {
		w.join("a", Options{})
		time.Sleep(3 * time.Second)
		w.mu.Lock()
		w.late["a"] = true
		w.mu.Unlock()
		w.join("b", Options{})
		time.Sleep(time.Minute)
		w.wantOwns(map[string]int{"a": 8})
		w.mu.Lock()
		w.late["a"] = false
		w.mu.Unlock()
		time.Sleep(10 * time.Second)
		w.wantOwns(map[string]int{"a": 4, "b": 4})
	})
}

func TestWhoHasAnotherNumberOfShardsIsRefused(t *testing.T) {
	inWorld(t, 8, func(t *testing.T, w *world) {
		w.join("a", Options{})
		time.Sleep(3 * time.Second)
		s, err := primacy.NewSession(w.store, &primacy.Options{ID: "b", TTL: 5 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		b := w.joinOn(s, 16, "b", Options{})
		<-b.done
		want := "it has 8, as a runs it, and this member was made for 16"
		if !errors.Is(b.err, ErrShards) || !strings.Contains(b.err.Error(), want) {
			t.Errorf("Run returned %v", b.err)
		}
		w.wantOwns(map[string]int{"a": 8})
	})
}

// Two that start at the same time cannot see each other before they stand: the later one goes.
func TestTwoThatStartWithDifferentNumbers(t *testing.T) {
	inWorld(t, 8, func(t *testing.T, w *world) {
		a := w.join("a", Options{})
		s, err := primacy.NewSession(w.store, &primacy.Options{ID: "b", TTL: 5 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		b := w.joinOn(s, 16, "b", Options{})
		select {
		case <-a.done:
		case <-b.done:
		case <-time.After(10 * time.Second):
		}
		time.Sleep(3 * time.Second)
		gone, ended := 0, error(nil)
		for _, m := range []*running{a, b} {
			select {
			case <-m.done:
				gone++
				ended = m.err
			default:
			}
		}
		if gone != 1 || !errors.Is(ended, ErrShards) {
			t.Errorf("%d of two members with different numbers ended: %v", gone, ended)
		}
		if n := len(w.status().Unowned()); n != 0 {
			t.Errorf("%d shards have no owner", n)
		}
	})
}

// TestAPlanOfAFormerAssigner: a member follows no plan of an epoch before the last it has followed.
func TestAPlanOfAFormerAssigner(t *testing.T) {
	inWorld(t, 8, func(t *testing.T, w *world) {
		a := w.join("a", Options{})
		time.Sleep(3 * time.Second)
		w.wantOwns(map[string]int{"a": 8})
		g := a.g
		g.mu.Lock()
		mine, epoch := slices.Clone(g.mine), g.plan.epoch
		g.mu.Unlock()
		if epoch == 0 || len(mine) != 1 {
			t.Fatalf("the epoch is %d, claims %v", epoch, mine)
		}
		line := func(token primacy.Token, seq uint64, to primacy.Token) primacy.State {
			p := announcement{epoch: token, seq: seq}
			if to != 0 {
				p.takes = []take{{3, to}}
			}
			r := record{Shards: 8, Instance: "another", Plan: all(p.encode(1000))}
			own := g.record
			return primacy.State{Leader: &primacy.Entry{ID: "z", Token: token, Value: r.encode()},
				Waiting: []primacy.Entry{{ID: "a", Token: mine[0], Value: own.encode()}}}
		}
		follow := func(st primacy.State) bool {
			if err := g.follow(st); err != nil {
				t.Fatal(err)
			}
			g.mu.Lock()
			defer g.mu.Unlock()
			return g.plan.wants(g.mine)[3]
		}
		for _, test := range []struct {
			what  string
			token primacy.Token
			seq   uint64
			to    primacy.Token
			want  bool
		}{
			{"a later epoch", epoch + 10, 1, 0, false},
			{"an earlier epoch", epoch + 9, 7, mine[0], false},
			{"a later number", epoch + 10, 3, mine[0], true},
			{"an earlier number", epoch + 10, 2, 0, true},
			{"the same number", epoch + 10, 3, 0, true},
			{"the next epoch", epoch + 11, 1, 0, false},
		} {
			if got := follow(line(test.token, test.seq, test.to)); got != test.want {
				t.Errorf("after a plan of %s the member wants the shard: %v", test.what, got)
			}
		}
		// What a member announces as its plan of an earlier term is no plan of the present one.
		st := line(epoch+20, 1, mine[0])
		st.Leader.Token++
		if follow(st) {
			t.Error("a plan counts in another epoch than its own")
		}
	})
}

// TestARequestForAFormerTerm: an owner hands over only if it is asked by the token of its term.
func TestARequestForAFormerTerm(t *testing.T) {
	inWorld(t, 1, func(t *testing.T, w *world) {
		a := w.join("a", Options{})
		time.Sleep(3 * time.Second)
		owned := a.g.Owned()
		if len(owned) != 1 {
			t.Fatalf("a owns %v", owned)
		}
		e := a.session.Election("tenants/0000")
		if _, err := e.Ask(t.Context(), primacy.Request{Token: owned[0].Term.Token() - 1}); err == nil {
			t.Error("a request for another term was sent")
		}
		time.Sleep(time.Second)
		if err := owned[0].Term.Check(); err != nil {
			t.Errorf("the term ended by a request for another one: %v", err)
		}
		if _, err := e.Ask(t.Context(), primacy.Request{Token: owned[0].Term.Token()}); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		if err := owned[0].Term.Check(); err == nil {
			t.Error("the term goes on after a request for it")
		}
	})
}

func TestARollingRestartMovesNothing(t *testing.T) {
	inWorld(t, 24, func(t *testing.T, w *world) {
		o := Options{RestartGrace: 20 * time.Second}
		ids := []string{"a", "b", "c"}
		for _, id := range ids {
			w.join(id, o)
		}
		time.Sleep(3 * time.Second)
		before := w.status()
		for _, id := range ids {
			m := w.member[id]
			m.stop(nil)
			<-m.done
			if m.err != nil {
				t.Fatal(m.err)
			}
			_ = m.session.Close(context.Background())
			time.Sleep(4 * time.Second)
			if n := len(w.status().Unowned()); n != 8 {
				t.Fatalf("%d shards wait for %s, want 8", n, id)
			}
			w.join(id, o)
			time.Sleep(3 * time.Second)
		}
		for i, o := range w.status().Shards {
			if o.ID != before.Shards[i].ID {
				t.Errorf("shard %d went from %q to %q", i, before.Shards[i].ID, o.ID)
			}
		}
		if n := w.moves(); n != 0 {
			t.Errorf("%d shards moved", n)
		}
	})
}

// TestWhoCrashedAndIsBackGetsItsShards: a process that was killed and started again under its ID
// stands beside its own dead claims until their lease has run out. Nobody gives up a shard for it.
func TestWhoCrashedAndIsBackGetsItsShards(t *testing.T) {
	inWorld(t, 24, func(t *testing.T, w *world) {
		w.join("a", Options{})
		w.join("c", Options{})
		net := drivertest.Faulty(w.store, drivertest.Faults{})
		defer net.Hang(false)
		session := func(on driver.Store) *primacy.Session {
			o := primacy.Options{ID: "b", TTL: 30 * time.Second, Overrun: primacy.OverrunWait}
			s, err := primacy.NewSession(on, &o)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		w.joinOn(session(net), 24, "b", Options{})
		time.Sleep(3 * time.Second)
		before := w.status()
		net.Hang(true) // for the store that is the same as a death
		time.Sleep(time.Second)
		w.joinOn(session(w.store), 24, "b again", Options{})
		time.Sleep(10 * time.Second) // its old lease runs on
		if st := w.status(); len(st.Members) != 3 {
			t.Errorf("members %+v, want each once", st.Members)
		}
		time.Sleep(30 * time.Second)
		for i, o := range w.status().Shards {
			if o.ID != before.Shards[i].ID {
				t.Errorf("shard %d went from %q to %q", i, before.Shards[i].ID, o.ID)
			}
		}
		if n := w.moves(); n != 0 {
			t.Errorf("%d shards moved", n)
		}
	})
}

func TestWhoDoesNotComeBackLosesItsShardsAfterTheGrace(t *testing.T) {
	inWorld(t, 24, func(t *testing.T, w *world) {
		w.join("a", Options{})
		b := w.join("b", Options{RestartGrace: 20 * time.Second})
		time.Sleep(3 * time.Second)
		b.stop(nil)
		<-b.done
		time.Sleep(18 * time.Second)
		w.wantOwns(map[string]int{"a": 12, "": 12})
		st := w.status()
		if i := slices.IndexFunc(st.Members, func(m Member) bool { return m.ID == "b" }); i < 0 || !st.Members[i].Away {
			t.Errorf("members %+v do not show that b is away", st.Members)
		}
		time.Sleep(6 * time.Second)
		w.wantOwns(map[string]int{"a": 24})
	})
}

// TestAHandlerThatFails gives its shard to another member, and is not called in a hot loop where
// nobody else is there.
func TestAHandlerThatFails(t *testing.T) {
	inWorld(t, 4, func(t *testing.T, w *world) {
		w.fails["a"] = true
		w.join("a", Options{})
		time.Sleep(2 * time.Minute)
		if w.calls < 8 || w.calls > 4*10 {
			t.Errorf("a handler that fails at once was called %d times for 4 shards in two minutes", w.calls)
		}
		w.join("b", Options{})
		time.Sleep(5 * time.Second)
		if got := w.owns(); got["b"] == 0 {
			t.Errorf("no shard went to the member whose handler works: %v", got)
		}
		sum := 0 // a tries again now and then, and has a shard or two for an instant
		for range 120 {
			time.Sleep(time.Second)
			sum += w.owns()["b"]
		}
		if sum < 3*120 {
			t.Errorf("of 4 shards the member whose handler works owns %.1f on average", float64(sum)/120)
		}
	})
}

// TestAShardWhoseHandlerFailsGoesToAnotherMember at once, not after the time that a member has to
// take a shard.
func TestAShardWhoseHandlerFailsGoesToAnotherMember(t *testing.T) {
	inWorld(t, 8, func(t *testing.T, w *world) {
		w.fails["a"] = true
		w.join("a", Options{})
		w.join("b", Options{})
		time.Sleep(6 * time.Second)
		if got := w.owns(); got["b"] < 7 {
			t.Errorf("6 s after the start the members own %v", got)
		}
	})
}

func TestAMemberThatIsNotHealthy(t *testing.T) {
	inWorld(t, 12, func(t *testing.T, w *world) {
		var sick, hangs atomic.Bool
		w.join("a", Options{Healthy: func(ctx context.Context) error {
			if hangs.Load() {
				<-ctx.Done()
				return nil // too late
			}
			if sick.Load() {
				return errors.New("disk full")
			}
			return nil
		}})
		w.join("b", Options{})
		time.Sleep(5 * time.Second)
		w.wantOwns(map[string]int{"a": 6, "b": 6})
		sick.Store(true)
		time.Sleep(3 * time.Second) // two failures are none
		w.wantOwns(map[string]int{"a": 6, "b": 6})
		time.Sleep(10 * time.Second)
		w.wantOwns(map[string]int{"b": 12})
		sick.Store(false)
		time.Sleep(90 * time.Second)
		w.wantOwns(map[string]int{"a": 6, "b": 6})
		hangs.Store(true)
		time.Sleep(30 * time.Second)
		w.wantOwns(map[string]int{"b": 12})
	})
}

func TestWarmComesBeforeTheOwnerStops(t *testing.T) {
	inWorld(t, 6, func(t *testing.T, w *world) {
		w.join("a", Options{})
		time.Sleep(3 * time.Second)
		var warmed sync.Map
		w.join("b", Options{Warm: func(ctx context.Context, shard int) error {
			select {
			case <-time.After(4 * time.Second):
			case <-ctx.Done():
				return ctx.Err()
			}
			warmed.Store(shardName("tenants", shard), time.Now())
			return nil
		}})
		time.Sleep(2 * time.Second)
		w.wantOwns(map[string]int{"a": 6})
		time.Sleep(30 * time.Second)
		w.wantOwns(map[string]int{"a": 3, "b": 3})
		for _, o := range w.status().Shards {
			if at, ok := warmed.Load(shardName("tenants", o.Number)); o.ID == "b" && !ok {
				t.Errorf("shard %d was taken without warming up", o.Number)
			} else if o.ID == "b" {
				w.mu.Lock()
				dark := w.begun[shardName("tenants", o.Number)].Sub(at.(time.Time))
				w.mu.Unlock()
				if dark > time.Second {
					t.Errorf("shard %d began %v after it was warm", o.Number, dark)
				}
			}
		}
	})
}

func TestPausedGroups(t *testing.T) {
	inWorld(t, 12, func(t *testing.T, w *world) {
		var answer atomic.Pointer[error]
		var paused atomic.Bool
		o := Options{Paused: func(_ context.Context, name string) (bool, error) {
			if e := answer.Load(); e != nil && !strings.Contains(name, "/") {
				return false, *e
			}
			return paused.Load() && !strings.Contains(name, "/"), nil // the group's: no shard's own
		}}
		w.join("a", o)
		w.join("b", o)
		time.Sleep(3 * time.Second)
		paused.Store(true)
		w.join("c", o)
		time.Sleep(20 * time.Second)
		w.wantOwns(map[string]int{"a": 6, "b": 6})
		unreadable := errors.New("no permission")
		answer.Store(&unreadable)
		paused.Store(false)
		time.Sleep(20 * time.Second)
		w.wantOwns(map[string]int{"a": 6, "b": 6})
		answer.Store(nil)
		time.Sleep(20 * time.Second)
		w.wantOwns(map[string]int{"a": 4, "b": 4, "c": 4})
	})
}

// TestAPauseOfOneShardHoldsItsMove: the owner of a shard whose own name is paused is not asked. The
// others move.
func TestAPauseOfOneShardHoldsItsMove(t *testing.T) {
	inWorld(t, 12, func(t *testing.T, w *world) {
		var mu sync.Mutex
		held := map[string]bool{}
		o := Options{Paused: func(_ context.Context, name string) (bool, error) {
			mu.Lock()
			defer mu.Unlock()
			return held[name], nil
		}}
		w.join("a", o)
		w.join("b", o)
		time.Sleep(3 * time.Second)
		mu.Lock()
		for _, s := range w.status().Shards {
			held[shardName("tenants", s.Number)] = s.ID == "a"
		}
		mu.Unlock()
		w.join("c", o)
		time.Sleep(3 * time.Minute) // each that is held takes room from the others for ReadyTimeout
		w.wantOwns(map[string]int{"a": 6, "b": 4, "c": 2})
		for _, m := range w.status().Moves {
			if m.Asked {
				t.Errorf("shard %d is paused, and its owner is said to have been asked", m.Shard)
			}
		}
		mu.Lock()
		clear(held)
		mu.Unlock()
		time.Sleep(20 * time.Second)
		w.wantOwns(map[string]int{"a": 4, "b": 4, "c": 4})
	})
}

func TestStatusShowsWhatIsUnderWay(t *testing.T) {
	inWorld(t, 10, func(t *testing.T, w *world) {
		w.join("a", Options{Value: []byte("10.0.0.1:80")})
		time.Sleep(3 * time.Second)
		w.mu.Lock()
		w.late["a"] = true
		w.mu.Unlock()
		w.join("b", Options{Weight: 4})
		time.Sleep(3 * time.Second)
		st := w.status()
		if st.Assigner != "a" || st.Epoch == 0 || len(st.Members) != 2 || len(st.Shards) != 10 {
			t.Fatalf("status %+v", st)
		}
		if a, b := st.Members[0], st.Members[1]; a.ID != "a" || a.Owns != 10 || a.Quota != 2 || b.Quota != 8 ||
			b.Weight != 4 || !b.Ready || string(a.Value) != "10.0.0.1:80" {
			t.Errorf("members %+v", st.Members)
		}
		if len(st.Moves) != 1 {
			t.Fatalf("moves %+v", st.Moves)
		}
		m := st.Moves[0]
		o := st.Shards[m.Shard]
		if m.From != "a" || m.To != "b" || m.Reason != Balance || !m.Asked || o.Target != "b" || o.Token != m.Token ||
			!slices.Equal(o.Waiting, []string{"b"}) || string(o.Value) != "10.0.0.1:80" {
			t.Errorf("move %+v of shard %+v", m, o)
		}
	})
}

func TestReadOfWhatIsNoGroup(t *testing.T) {
	inWorld(t, 1, func(t *testing.T, w *world) {
		s, err := primacy.NewSession(w.store, &primacy.Options{ID: "x"})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close(context.Background())
		if _, err := Read(t.Context(), s, "nothing"); !errors.Is(err, primacy.ErrNoLeader) {
			t.Errorf("Read of a name that nobody uses: %v", err)
		}
		term, err := s.Election("tenants").Campaign(t.Context(), &primacy.CampaignOptions{Value: []byte("host:80")})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Read(t.Context(), s, "tenants"); !errors.Is(err, primacy.ErrInvalid) ||
			!strings.Contains(err.Error(), "no group of shards: x, who has it, announces what is no member's record") {
			t.Errorf("Read of an election: %v", err)
		}
		g, err := New(s, "tenants", 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		err = g.Run(t.Context(), func(context.Context, *Shard) error { return nil })
		if !errors.Is(err, primacy.ErrInvalid) {
			t.Errorf("Run beside an election of the same name: %v", err)
		}
		_ = term.Resign(t.Context())
	})
}

func TestWhatCannotWorkIsRefused(t *testing.T) {
	s, err := primacy.NewSession(memstore.New(memstore.Options{}), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		n    int
		o    Options
		want string
	}{
		{"", 1, Options{}, "name is empty"},
		{"a/0001", 1, Options{}, "ends like that of a shard"},
		{"a", 0, Options{}, "0 shards: use 1 to 10000"},
		{"a", 10001, Options{}, "10001 shards"},
		{strings.Repeat("x", 251), 1, Options{}, "251 bytes, more than 250"},
		{"a", 1, Options{Weight: -1}, "weight -1"},
		{"a", 1, Options{Moves: -1}, "moves -1"},
		{"a", 1, Options{Moves: 101}, "moves 101: use 1 to 100"},
		{"a", 1, Options{Value: make([]byte, 513)}, "513 bytes"},
		{"a", 1, Options{Cooldown: -1}, "Cooldown -1ns"},
		{"a", 1, Options{Settle: 9 * time.Second}, "SettleMax 5s is less than Settle 9s"},
		{"a", 1, Options{RestartGrace: 2 * time.Hour}, "at most an hour"},
	} {
		_, err := New(s, test.name, test.n, &test.o)
		if !errors.Is(err, primacy.ErrInvalid) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("New of %q with %d shards and %+v: %v, want %q", test.name, test.n, test.o, err, test.want)
		}
	}
	g, err := New(s, "2026", 1, nil)
	if err != nil || g.Name() != "2026" || g.Shards() != 1 {
		t.Errorf("New = %v, %v", g, err)
	}
}

func ExampleGroup() {
	// One process of a fleet; the others run the same.
	session, err := primacy.NewSession(memstore.New(memstore.Options{}), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer session.Close(context.Background())
	group, err := New(session, "tenants", 4, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Add(4)
	go func() {
		running.Wait()
		cancel()
	}()
	err = group.Run(ctx, func(ctx context.Context, s *Shard) error {
		running.Done()
		<-ctx.Done() // serve the shard until then, with s.Term.Token() in each write
		return nil
	})
	fmt.Println("owned 4 shards,", err)
	// Output: owned 4 shards, <nil>
}

// restart stops a member by its RestartGrace and starts it again 3 s later.
func (w *world) restart(id string, o Options) {
	w.t.Helper()
	m := w.member[id]
	m.stop(nil)
	<-m.done
	_ = m.session.Close(context.Background())
	time.Sleep(3 * time.Second)
	w.join(id, o)
}

// TestACrashAfterARestartIsNotWaitedFor: a restart that is over must not make the group wait for a
// member that crashes later.
func TestACrashAfterARestartIsNotWaitedFor(t *testing.T) {
	inWorld(t, 12, func(t *testing.T, w *world) {
		o := Options{RestartGrace: 10 * time.Minute}
		w.join("a", o)
		w.join("b", o)
		time.Sleep(3 * time.Second)
		w.restart("b", o)
		time.Sleep(20 * time.Second)
		w.wantOwns(map[string]int{"a": 6, "b": 6})
		w.restart("b", o) // one more: its record must not be taken for that of the first
		time.Sleep(20 * time.Second)
		w.wantOwns(map[string]int{"a": 6, "b": 6})
		w.crash("b")
		time.Sleep(10 * time.Second)
		w.wantOwns(map[string]int{"a": 12})
	})
}

// TestARestartWithABrokenVersionIsNoOutage: shards that were kept for a member go to others where
// it is back and its handlers fail.
func TestARestartWithABrokenVersionIsNoOutage(t *testing.T) {
	inWorld(t, 12, func(t *testing.T, w *world) {
		o := Options{RestartGrace: 10 * time.Minute}
		w.join("a", o)
		b := w.join("b", o)
		time.Sleep(3 * time.Second)
		b.stop(nil)
		<-b.done
		_ = b.session.Close(context.Background())
		w.mu.Lock()
		w.fails["b"] = true
		w.mu.Unlock()
		time.Sleep(3 * time.Second)
		w.join("b", o)
		time.Sleep(20 * time.Second)
		if got := w.owns(); got["a"] < 11 {
			t.Errorf("20 s after b came back with handlers that fail, the members own %v", got)
		}
	})
}

// unreadable is a store whose journal cannot be read for a while.
type unreadable struct {
	*memstore.Store
	fails atomic.Bool
}

func (s *unreadable) Records(ctx context.Context, j, before string, n int) ([]driver.Record, error) {
	if s.fails.Load() {
		return nil, errors.New("no answer in time")
	}
	return s.Store.Records(ctx, j, before, n)
}

func TestAJournalThatCannotBeReadGivesNothingAway(t *testing.T) {
	inWorld(t, 12, func(t *testing.T, w *world) {
		store := &unreadable{Store: w.store}
		o := Options{RestartGrace: 5 * time.Minute}
		on := func(id string) *running {
			so := primacy.Options{ID: id, TTL: 5 * time.Second, Overrun: primacy.OverrunWait}
			s, err := primacy.NewSession(store, &so)
			if err != nil {
				t.Fatal(err)
			}
			return w.joinOn(s, w.n, id, o)
		}
		on("a")
		b := on("b")
		time.Sleep(3 * time.Second)
		b.stop(nil)
		<-b.done
		time.Sleep(10 * time.Second)
		store.fails.Store(true)
		time.Sleep(10 * time.Second)
		store.fails.Store(false)
		w.wantOwns(map[string]int{"a": 6, "": 6})
	})
}

// TestAPausedCheckThatHangsHoldsUpNothingElse: moves wait for the answer, and shards that nobody
// owns do not. One check obeys its context, the other does not.
func TestAPausedCheckThatHangsHoldsUpNothingElse(t *testing.T) {
	for _, obeys := range []bool{true, false} {
		t.Run(fmt.Sprint("obeys its context: ", obeys), func(t *testing.T) {
			inWorld(t, 12, func(t *testing.T, w *world) {
				never := make(chan struct{})
				defer close(never)
				o := Options{Paused: func(ctx context.Context, _ string) (bool, error) {
					if obeys {
						<-ctx.Done()
					} else {
						<-never
					}
					return false, ctx.Err()
				}}
				a := w.join("a", o)
				w.join("b", o)
				time.Sleep(3 * time.Second)
				w.join("c", o)
				time.Sleep(10 * time.Second)
				w.wantOwns(map[string]int{"a": 6, "b": 6}) // moves count as paused
				req := primacy.Request{Reason: "an operator"}
				if _, err := a.session.Election(shardName("tenants", 0)).Ask(context.Background(), req); err != nil {
					t.Fatal(err)
				}
				time.Sleep(5 * time.Second)
				if got := w.owns(); got[""] != 0 || got["c"] != 1 {
					t.Errorf("5 s after a shard was given up the members own %v", got)
				}
			})
		})
	}
}

// TestTwoGroupsOfOneNameOnASession: the second is refused while the first runs, and gets shards
// after it.
func TestTwoGroupsOfOneNameOnASession(t *testing.T) {
	inWorld(t, 6, func(t *testing.T, w *world) {
		w.join("x", Options{})
		time.Sleep(time.Second)
		a := w.join("a", Options{})
		time.Sleep(10 * time.Second)
		again := w.joinOn(a.session, 6, "again", Options{})
		select {
		case <-again.done:
			if !errors.Is(again.err, primacy.ErrInvalid) {
				t.Errorf("Run of a second Group returned %v", again.err)
			}
		case <-time.After(10 * time.Second):
			t.Error("a second Group of the same name runs on the session")
		}
		a.stop(nil)
		<-a.done
		w.joinOn(a.session, 6, "later", Options{})
		time.Sleep(time.Minute)
		w.wantOwns(map[string]int{"x": 3, "a": 3})
	})
}

// TestTheAssignersPlanStaysInTheStore: a change of the assigner's own record must not erase it.
// Members that have not heard of the plan by then would never take their shards.
func TestTheAssignersPlanStaysInTheStore(t *testing.T) {
	inWorld(t, 24, func(t *testing.T, w *world) {
		a := w.join("a", Options{})
		time.Sleep(time.Second)
		w.join("b", Options{})
		time.Sleep(20 * time.Second)
		a.g.SetReady(false)
		a.g.SetReady(true)
		time.Sleep(time.Minute)
		l, err := w.store.Line(context.Background(), "tenants")
		if err != nil {
			t.Fatal(err)
		}
		if r, err := decodeRecord(l.Holder.Value); err != nil || len(r.Plan) == 0 || !r.Ready {
			t.Errorf("the assigner shows %+v, %v", r, err)
		}
	})
}

// TestPlansCountWhereTokensWentBack: the group's line has begun anew, with smaller tokens.
func TestPlansCountWhereTokensWentBack(t *testing.T) {
	inWorld(t, 8, func(t *testing.T, w *world) {
		g := w.join("a", Options{}).g
		time.Sleep(3 * time.Second)
		follow := func(lead, me primacy.Token) bool {
			p := announcement{epoch: lead, seq: 1, takes: []take{{3, me}}}
			r := record{Shards: 8, Instance: "another", Plan: all(p.encode(1000))}
			g.mu.Lock()
			own := g.record
			g.mu.Unlock()
			st := primacy.State{Leader: &primacy.Entry{ID: "z", Token: lead, Value: r.encode()},
				Waiting: []primacy.Entry{{ID: "a", Token: me, Value: own.encode()}}}
			if err := g.follow(st); err != nil {
				t.Fatal(err)
			}
			g.mu.Lock()
			defer g.mu.Unlock()
			return g.plan.epoch == lead && g.plan.wants(g.mine)[3]
		}
		if !follow(1000, 1001) {
			t.Error("a plan of a later epoch is not followed")
		}
		if follow(900, 1001) {
			t.Error("a plan of an earlier epoch is followed, though tokens did not go back")
		}
		if !follow(1, 2) {
			t.Error("a plan is not followed after the tokens went back")
		}
	})
}

// slowWarm takes that long for each shard.
func slowWarm(d time.Duration) func(context.Context, int) error {
	return func(ctx context.Context, _ int) error {
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func TestAWarmThatTakesLongerThanReadyTimeoutEnds(t *testing.T) {
	inWorld(t, 6, func(t *testing.T, w *world) {
		o := Options{Warm: slowWarm(40 * time.Second)}
		w.join("a", o)
		w.join("b", o)
		time.Sleep(3 * time.Minute)
		if got := w.owns(); got[""] != 0 {
			t.Errorf("three minutes after the start the members own %v", got)
		}
	})
}

// TestWhoLeavesHandsOverWarmShards: with a Warm of some seconds, and beside a member that never
// gets warm.
func TestWhoLeavesHandsOverWarmShards(t *testing.T) {
	for _, stuck := range []bool{false, true} {
		t.Run(fmt.Sprint("beside one that is stuck: ", stuck), func(t *testing.T) {
			inWorld(t, 48, func(t *testing.T, w *world) {
				o := Options{Warm: slowWarm(3 * time.Second)}
				w.join("a", o)
				b := w.join("b", o)
				time.Sleep(20 * time.Second)
				if stuck {
					w.join("z", Options{Warm: slowWarm(time.Hour)})
					time.Sleep(5 * time.Second)
				}
				before := w.owns()["b"]
				w.mu.Lock()
				clear(w.lost)
				w.mu.Unlock()
				b.stop(nil)
				<-b.done
				if n := w.moves(); n != before || w.owns()["a"] != 48 {
					t.Errorf("%d of %d shards were handed over, and the members own %v", n, before, w.owns())
				}
			})
		})
	}
}

func TestOneMemberWithBrokenHandlersDoesNotInterruptAllShards(t *testing.T) {
	inWorld(t, 64, func(t *testing.T, w *world) {
		w.join("a", Options{})
		w.join("b", Options{})
		time.Sleep(5 * time.Second)
		w.mu.Lock()
		w.fails["c"] = true
		w.mu.Unlock()
		w.join("c", Options{})
		time.Sleep(5 * time.Minute)
		if n := w.moves(); n == 0 || n > 10 {
			t.Errorf("%d healthy shards were moved to a member whose handlers fail, in five minutes", n)
		}
		if got := w.owns(); got[""] != 0 || got["a"]+got["b"] != 64 {
			t.Errorf("the members own %v", got)
		}
	})
}

// lateNews is a store whose sessions hear late of what became of their claims.
type lateNews struct {
	*memstore.Store
	by time.Duration
}

type lateLease struct {
	driver.Lease
	driver.Transferer
	by time.Duration
}

func (s *lateNews) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := s.Store.Grant(ctx, owner, ttl)
	if err != nil {
		return nil, err
	}
	return &lateLease{l, l.(driver.Transferer), s.by}, nil
}

func (l *lateLease) News(ctx context.Context) ([]driver.News, error) {
	n, err := l.Lease.News(ctx)
	if err == nil {
		time.Sleep(l.by)
	}
	return n, err
}

// TestAnOwnerThatHearsLateOfItsShardKeepsIt: the plan that no longer names the shard comes first.
func TestAnOwnerThatHearsLateOfItsShardKeepsIt(t *testing.T) {
	inWorld(t, 24, func(t *testing.T, w *world) {
		store := &lateNews{w.store, 600 * time.Millisecond}
		for _, id := range []string{"a", "b"} {
			o := primacy.Options{ID: id, TTL: 5 * time.Second, Overrun: primacy.OverrunWait}
			s, err := primacy.NewSession(store, &o)
			if err != nil {
				t.Fatal(err)
			}
			w.joinOn(s, w.n, id, Options{})
			time.Sleep(5 * time.Second)
		}
		dark := 0
		for range 3000 {
			dark += len(w.status().Unowned())
			time.Sleep(20 * time.Millisecond)
		}
		if dark > 0 {
			t.Errorf("shards that moved were seen without an owner %d times", dark)
		}
		w.wantOwns(map[string]int{"a": 12, "b": 12})
	})
}

// TestTheNextAssignerKnowsWhatHasMoved: a shard rests after a move also if the assigner changes.
func TestTheNextAssignerKnowsWhatHasMoved(t *testing.T) {
	inWorld(t, 2, func(t *testing.T, w *world) {
		a := w.join("a", Options{})
		time.Sleep(3 * time.Second)
		w.join("b", Options{})
		time.Sleep(10 * time.Second)
		w.wantOwns(map[string]int{"a": 1, "b": 1})
		if _, err := a.session.Election("tenants").Ask(t.Context(), primacy.Request{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if st := w.status(); st.Assigner != "b" {
			t.Fatalf("%s assigns", st.Assigner)
		}
		w.join("c", Options{Weight: 100})
		time.Sleep(10 * time.Second)
		w.wantOwns(map[string]int{"b": 1, "c": 1})
		time.Sleep(DefaultCooldown)
		w.wantOwns(map[string]int{"c": 2})
	})
}

// TestMovesThatAreDone: what has moved, and not what was withdrawn or is of another assigner.
func TestMovesThatAreDone(t *testing.T) {
	before := announcement{epoch: 5, seq: 1, moves: []move{{shard: 1, to: 7}, {shard: 2, to: 7}, {shard: 3, to: 8}}}
	next := announcement{epoch: 5, seq: 2, takes: []take{{1, 7}, {2, 8}}, moves: []move{{shard: 3, to: 8}}}
	if got := before.doneBefore(next); !slices.Equal(got, []int{1}) {
		t.Errorf("the shards %v have moved, want 1", got)
	}
	if next.epoch++; before.doneBefore(next) != nil {
		t.Error("the plan of another assigner says what has moved")
	}
}

// TestAHandlerThatEndsItsGoroutine has failed: its shard goes to another member.
func TestAHandlerThatEndsItsGoroutine(t *testing.T) {
	inWorld(t, 2, func(t *testing.T, w *world) {
		s, err := primacy.NewSession(w.store,
			&primacy.Options{ID: "a", TTL: 5 * time.Second, Overrun: primacy.OverrunWait})
		if err != nil {
			t.Fatal(err)
		}
		g, err := New(s, "tenants", 2, nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- g.Run(ctx, func(context.Context, *Shard) error {
				runtime.Goexit()
				return nil
			})
		}()
		time.Sleep(2 * time.Second)
		w.join("b", Options{})
		time.Sleep(10 * time.Second)
		w.wantOwns(map[string]int{"b": 2})
		stop()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Error("Run has not returned a minute after its context has ended")
		}
		limit, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_ = s.Close(limit)
	})
}

// TestReadyIsWhatBothSay: SetReady and Healthy, of each Run anew.
func TestReadyIsWhatBothSay(t *testing.T) {
	inWorld(t, 4, func(t *testing.T, w *world) {
		w.join("b", Options{})
		a := w.join("a", Options{Healthy: func(context.Context) error { return nil }})
		time.Sleep(5 * time.Second)
		w.wantOwns(map[string]int{"a": 2, "b": 2})
		a.g.SetReady(false)
		time.Sleep(30 * time.Second) // a check that succeeds does not say otherwise
		w.wantOwns(map[string]int{"b": 4})
		a.g.SetReady(true)
		time.Sleep(2 * time.Minute)
		w.wantOwns(map[string]int{"a": 2, "b": 2})
	})
}

// TestAStrangerWhoLeadsTheGroupIsTold, once.
func TestAStrangerWhoLeadsTheGroupIsTold(t *testing.T) {
	told := 0
	f := follower{name: "tenants", n: 4, id: "a", log: func(slog.Level, string, ...any) { told++ }}
	for _, token := range []primacy.Token{5, 5, 9} {
		ok, err := f.heard(primacy.State{Leader: &primacy.Entry{ID: "cron", Token: token, Value: []byte("?")}})
		if ok || err != nil {
			t.Errorf("what is no member is followed: %v, %v", ok, err)
		}
	}
	if told != 2 {
		t.Errorf("told %d times of two leaders that are no members", told)
	}
}

// TestTheAssignerThatLeavesHandsOverAtOnce: it does not wait until it would have looked anyway.
func TestTheAssignerThatLeavesHandsOverAtOnce(t *testing.T) {
	inWorld(t, 12, func(t *testing.T, w *world) {
		a := w.join("a", Options{})
		time.Sleep(time.Second)
		w.join("b", Options{})
		time.Sleep(40 * time.Second)
		if st := w.status(); st.Assigner != "a" {
			t.Fatalf("%s assigns", st.Assigner)
		}
		began, moved := time.Now(), w.moves()
		a.stop(nil)
		<-a.done
		if took := time.Since(began); took > time.Second || w.moves()-moved != 6 {
			t.Errorf("the assigner left within %v and handed over %d of 6 shards", took, w.moves()-moved)
		}
		w.wantOwns(map[string]int{"b": 12})
	})
}

// TestALineOfAnotherNumberOfShards: who stands behind such a leader goes; who leads does not by its
// own record.
func TestALineOfAnotherNumberOfShards(t *testing.T) {
	f := follower{name: "tenants", n: 4, id: "b", instance: "i", log: func(slog.Level, string, ...any) {}}
	leader := primacy.Entry{ID: "a", Token: 5, Value: record{Shards: 8, Instance: "x"}.encode()}
	own := primacy.Entry{ID: "b", Token: 6, Value: record{Shards: 4, Instance: "i"}.encode()}
	if _, err := f.heard(primacy.State{Leader: &leader, Waiting: []primacy.Entry{own}}); !errors.Is(err, ErrShards) {
		t.Errorf("behind a leader with another number: %v, want ErrShards", err)
	}
	if _, err := f.heard(primacy.State{Leader: &own, Waiting: []primacy.Entry{leader}}); err != nil {
		t.Errorf("ahead of a member with another number: %v", err)
	}
}

// TestACheckThatNeverReturns is one that fails again and again.
func TestACheckThatNeverReturns(t *testing.T) {
	inWorld(t, 12, func(t *testing.T, w *world) {
		var hangs atomic.Bool
		var calls atomic.Int32
		over := make(chan struct{})
		w.join("a", Options{Healthy: func(context.Context) error {
			if hangs.Load() {
				calls.Add(1)
				<-over
			}
			return nil
		}})
		w.join("b", Options{})
		time.Sleep(5 * time.Second)
		w.wantOwns(map[string]int{"a": 6, "b": 6})
		hangs.Store(true)
		time.Sleep(time.Minute)
		w.wantOwns(map[string]int{"b": 12})
		if n := calls.Load(); n != 1 {
			t.Errorf("%d calls at a time", n)
		}
		hangs.Store(false)
		close(over)
		time.Sleep(2 * time.Minute)
		w.wantOwns(map[string]int{"a": 6, "b": 6})
	})
}

// longLines is a store that takes long for the lines of a group, as a register does.
type longLines struct {
	*memstore.Store
	takes time.Duration
}

func (s *longLines) Lines(ctx context.Context, prefix string) ([]driver.Line, error) {
	select {
	case <-time.After(s.takes):
		return s.Store.Lines(ctx, prefix)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// TestAStoreThatTakesLongForALook: the assigner assigns, and moves shards too.
func TestAStoreThatTakesLongForALook(t *testing.T) {
	inWorld(t, 12, func(t *testing.T, w *world) {
		store := &longLines{w.store, 3 * time.Second}
		o := Options{Paused: func(context.Context, string) (bool, error) { return false, nil }}
		for _, id := range []string{"a", "b"} {
			so := primacy.Options{ID: id, TTL: 10 * time.Second, Overrun: primacy.OverrunWait}
			s, err := primacy.NewSession(store, &so)
			if err != nil {
				t.Fatal(err)
			}
			w.joinOn(s, w.n, id, o)
			time.Sleep(10 * time.Minute)
		}
		w.wantOwns(map[string]int{"a": 6, "b": 6})
	})
}

// TestASecondRestartIsWaitedFor too, however long ago the first was.
func TestASecondRestartIsWaitedFor(t *testing.T) {
	inWorld(t, 12, func(t *testing.T, w *world) {
		o := Options{RestartGrace: 20 * time.Second}
		w.join("a", o)
		time.Sleep(time.Second)
		w.join("b", o)
		time.Sleep(3 * time.Second)
		for range 2 {
			m := w.member["b"]
			m.stop(nil)
			<-m.done
			_ = m.session.Close(context.Background())
			time.Sleep(4 * time.Second)
			w.wantOwns(map[string]int{"a": 6, "": 6})
			w.join("b", o)
			time.Sleep(time.Minute)
			w.wantOwns(map[string]int{"a": 6, "b": 6})
		}
	})
}
