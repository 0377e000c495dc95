package shards

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
)

// fleet is a group in fake time whose members do at once what the decider says, but for those that
// are slow.
type fleet struct {
	t      *testing.T
	now    time.Duration
	v      view
	d      *decider
	token  primacy.Token
	slow   map[string]bool // do not stand for any shard
	deaf   map[string]bool // own shards and do not hand over
	paused bool
	moved  int // how often a shard went from a living member to another
	most   int // moves under way at a time
	log    []string
}

func newFleet(t *testing.T, shards int, o Options, ids ...string) *fleet {
	t.Helper()
	o, err := o.fill(shards)
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{t: t, v: view{shards: make([]shardView, shards)}, slow: map[string]bool{}, deaf: map[string]bool{}}
	f.join(ids...)
	f.d = newDecider(shards, o, f.next())
	return f
}

func (f *fleet) next() primacy.Token { f.token++; return f.token }

func (f *fleet) join(ids ...string) {
	for _, id := range ids {
		f.v.members = append(f.v.members, memberView{id: id, lease: fmt.Sprintf("lease %d", f.token), token: f.next(),
			weight: 1, ready: true})
	}
	slices.SortFunc(f.v.members, byID)
}

func byID(a, b memberView) int { return cmp.Compare(a.id, b.id) }

func (f *fleet) member(id string) *memberView {
	i := slices.IndexFunc(f.v.members, func(m memberView) bool { return m.id == id })
	if i < 0 {
		f.t.Fatalf("no member %s", id)
	}
	return &f.v.members[i]
}

// crash removes a member with all its claims, as the end of its lease does.
func (f *fleet) crash(id string) {
	lease := f.member(id).lease
	f.v.members = slices.DeleteFunc(f.v.members, func(m memberView) bool { return m.id == id })
	for i := range f.v.shards {
		s := &f.v.shards[i]
		s.waiting = slices.DeleteFunc(s.waiting, func(w waiter) bool { return w.lease == lease })
		if s.lease == lease {
			f.release(i)
		}
	}
}

// release gives a shard up: the first who waits leads.
func (f *fleet) release(i int) {
	s := &f.v.shards[i]
	s.id, s.lease, s.token = "", "", 0
	if len(s.waiting) > 0 {
		s.id, s.lease, s.token = s.waiting[0].id, s.waiting[0].lease, f.next()
		s.waiting = s.waiting[1:]
	}
}

// step has the decider decide once, and does what it says.
func (f *fleet) step() decision {
	out := f.d.step(f.now, f.v, f.paused, true)
	f.most = max(f.most, len(f.d.moves))
	for _, c := range out.changes {
		f.log = append(f.log, fmt.Sprintf("%s %s %s", c.what, c.reason, c.why))
	}
	for _, k := range out.plan.takes {
		at := f.v.at(k.to)
		if s := &f.v.shards[k.shard]; s.token == 0 && at >= 0 && !f.slow[f.v.members[at].id] {
			s.id, s.lease, s.token = f.v.members[at].id, f.v.members[at].lease, f.next()
		}
	}
	for _, m := range out.plan.moves {
		at := f.v.at(m.to)
		s := &f.v.shards[m.shard]
		if at < 0 || f.slow[f.v.members[at].id] {
			continue
		}
		if lease := f.v.members[at].lease; !s.stands(lease) && s.lease != lease {
			s.waiting = append(s.waiting, waiter{f.v.members[at].id, lease})
		}
	}
	for _, m := range out.asks {
		s := &f.v.shards[m.shard]
		if s.token == m.owner && !f.deaf[s.id] {
			at := f.v.at(m.to)
			s.waiting = nil
			s.id, s.lease, s.token = f.v.members[at].id, f.v.members[at].lease, f.next()
			f.moved++
		}
	}
	return out
}

// run goes on for d, with a step each 100 ms.
func (f *fleet) run(d time.Duration) {
	for until := f.now + d; f.now < until; f.now += 100 * time.Millisecond {
		f.step()
	}
}

func (f *fleet) loads() map[string]int {
	n := map[string]int{}
	for _, s := range f.v.shards {
		n[s.id]++
	}
	return n
}

// even fails unless all shards have owners and loads differ by at most one.
func (f *fleet) even() {
	f.t.Helper()
	n := f.loads()
	low, high := len(f.v.shards), 0
	for _, m := range f.v.members {
		low, high = min(low, n[m.id]), max(high, n[m.id])
	}
	if n[""] > 0 || high-low > 1 {
		f.t.Fatalf("after %v: %v", f.now, n)
	}
}

func TestAFleetThatStartsGathers(t *testing.T) {
	f := newFleet(t, 64, Options{}, "a")
	f.step()
	f.now += 300 * time.Millisecond
	f.join("b", "c", "d")
	f.step()
	f.now += 400 * time.Millisecond // 0.7 s after the start, 0.4 s after the last came
	f.step()
	if n := f.loads()[""]; n != 64 {
		t.Fatalf("%d shards were given out while members were still coming", 64-n)
	}
	f.run(200 * time.Millisecond)
	f.even()
	if f.moved != 0 {
		t.Errorf("%d shards were moved by the start of a fleet", f.moved)
	}
}

func TestAFleetThatGoesOnGrowingDoesNotWaitForEver(t *testing.T) {
	f := newFleet(t, 64, Options{}, "a")
	for i := range 8 {
		f.join(fmt.Sprint("late", i))
		f.run(300 * time.Millisecond)
	}
	if n := f.loads()[""]; n != 0 {
		t.Errorf("%d shards have no owner %v after the start", n, f.now)
	}
}

func TestShardsOfWhoCrashedWaitForNothing(t *testing.T) {
	f := newFleet(t, 64, Options{Settle: time.Hour, SettleMax: time.Hour}, "a", "b", "c", "d")
	f.run(3 * time.Second)
	f.crash("b")
	f.step()
	if n := f.loads()[""]; n != 0 {
		t.Errorf("%d shards were left without an owner", n)
	}
	f.even()
	if f.moved != 0 {
		t.Errorf("%d shards moved that had owners", f.moved)
	}
}

func TestNothingMovesForBalanceBeforeTheMembersHaveSettled(t *testing.T) {
	f := newFleet(t, 64, Options{Settle: 2 * time.Second, SettleMax: 5 * time.Second}, "a", "b", "c")
	f.run(5 * time.Second)
	f.join("d")
	f.run(1900 * time.Millisecond)
	if f.moved != 0 || f.most != 0 {
		t.Errorf("%d shards moved 1.9 s after a member came", f.moved)
	}
	for i := range 3 { // one comes each 1.5 s: they never settle, and after SettleMax shards move all the same
		f.join(fmt.Sprint("e", i))
		f.run(1500 * time.Millisecond)
	}
	if f.moved == 0 {
		t.Error("no shard moved although members came for longer than SettleMax")
	}
	f.run(time.Minute)
	f.even()
}

func TestNoMoreMovesAreUnderWayThanAllowed(t *testing.T) {
	f := newFleet(t, 200, Options{}, "a", "b", "c", "d")
	f.run(3 * time.Second)
	f.slow["e"] = true
	f.join("e")
	f.run(3 * time.Second)
	if f.most != 4 { // 2 % of 200
		t.Errorf("%d moves were under way at a time, want 4", f.most)
	}
	f.slow["e"] = false
	f.run(10 * time.Second)
	f.even()
	if f.moved != 40 || f.most != 4 {
		t.Errorf("%d moves, want 40; %d at a time, want 4", f.moved, f.most)
	}
}

func TestAShardThatHasMovedRests(t *testing.T) {
	f := newFleet(t, 2, Options{Cooldown: time.Minute}, "a")
	f.run(3 * time.Second)
	f.join("b")
	f.run(3 * time.Second)
	f.even()
	if f.moved != 1 {
		t.Fatalf("%d moves, want 1", f.moved)
	}
	first := f.v.shards[0].id
	f.member(first).weight = 9 // it should have both again
	f.run(50 * time.Second)
	if f.moved != 1 {
		t.Errorf("a shard moved twice within its cooldown")
	}
	f.run(20 * time.Second)
	if f.moved != 2 {
		t.Errorf("%d moves after the cooldown, want 2", f.moved)
	}
}

func TestTheOwnerIsAskedOnceTheNewMemberStands(t *testing.T) {
	f := newFleet(t, 10, Options{}, "a")
	f.run(3 * time.Second)
	f.slow["b"] = true
	f.join("b")
	f.run(5 * time.Second)
	out := f.step()
	if len(out.asks) != 0 || len(out.plan.moves) != 1 || out.plan.moves[0].asked {
		t.Fatalf("asks %+v, moves %+v, while the new member does not stand", out.asks, out.plan.moves)
	}
	m := out.plan.moves[0]
	f.deaf["a"], f.slow["b"] = true, false
	f.step()
	out = f.step()
	if len(out.asks) != 1 || out.asks[0].owner != f.v.shards[m.shard].token || out.asks[0].shard != m.shard {
		t.Errorf("asks %+v, want the owner of shard %d by its token", out.asks, m.shard)
	}
	f.run(10 * time.Minute) // the owner's handler does not return: nobody takes the shard by force
	if f.v.shards[m.shard].id != "a" || f.v.shards[m.shard].token != m.owner {
		t.Errorf("shard %d is owned by %+v", m.shard, f.v.shards[m.shard])
	}
}

func TestAMoveIsWithdrawnWhereTheNewMemberIsNotReadyInTime(t *testing.T) {
	f := newFleet(t, 50, Options{}, "a", "b")
	f.run(3 * time.Second)
	f.slow["c"] = true
	f.join("c")
	f.run(DefaultReadyTimeout)
	if f.moved != 0 || slices.Contains(f.log, "withdrawn balance the new member was not ready in time") {
		t.Fatalf("%d moves, log %q", f.moved, f.log)
	}
	f.run(2 * time.Second)
	if !slices.Contains(f.log, "withdrawn balance the new member was not ready in time") {
		t.Errorf("log %q", f.log)
	}
	if n := f.loads(); n["a"] != 25 || n["b"] != 25 {
		t.Errorf("loads %v", n)
	}
}

func TestAHandlerThatDoesNotReturnHoldsUpNoOtherMove(t *testing.T) {
	f := newFleet(t, 20, Options{}, "a", "b") // one move at a time
	f.run(3 * time.Second)
	f.deaf["a"] = true
	f.join("c")
	f.run(3 * time.Minute)
	if n := f.loads(); n["c"] < 2 {
		t.Errorf("loads %v: c got nothing from b while a did not hand over", n)
	}
}

func TestWhoLeavesGivesItsShardsWithoutWaiting(t *testing.T) {
	f := newFleet(t, 100, Options{Settle: time.Hour, SettleMax: time.Hour, Cooldown: time.Hour}, "a", "b", "c")
	f.run(3 * time.Second)
	f.paused = true
	f.member("b").draining = true
	f.run(10 * time.Second)
	if n := f.loads(); n["b"] != 0 || n["a"] != 50 || n["c"] != 50 {
		t.Errorf("loads %v", n)
	}
	if f.moved != 33 && f.moved != 34 {
		t.Errorf("%d moves for one that leaves with a third of 100", f.moved)
	}
}

func TestWhoIsNotReadyGivesItsShardsUp(t *testing.T) {
	f := newFleet(t, 60, Options{}, "a", "b", "c")
	f.run(3 * time.Second)
	f.member("a").ready = false
	f.run(10 * time.Second)
	if n := f.loads(); n["a"] != 0 || n["b"] != 30 || f.moved != 20 {
		t.Errorf("loads %v after %d moves", n, f.moved)
	}
	f.member("b").ready, f.member("c").ready = false, false
	f.run(10 * time.Second)
	if f.moved != 20 {
		t.Errorf("%d shards moved although nobody is ready", f.moved-20)
	}
}

func TestWhilePausedNothingMovesForBalanceOrHealth(t *testing.T) {
	f := newFleet(t, 60, Options{}, "a", "b", "c")
	f.run(3 * time.Second)
	f.paused = true
	f.join("d")
	f.member("a").ready = false
	f.run(10 * time.Second)
	if f.moved != 0 || f.most != 0 {
		t.Errorf("%d shards moved", f.moved)
	}
	f.crash("b")
	f.run(time.Second)
	if n := f.loads(); n[""] != 0 {
		t.Errorf("%d shards have no owner, since moves are paused", n[""])
	}
	out := f.d.step(f.now, f.v, false, false)
	if !out.blocked || len(f.d.moves) != 0 {
		t.Errorf("moves %v begun without knowing whether they are paused, blocked %v", f.d.moves, out.blocked)
	}
}

// TestAPauseWithdrawsAMoveWhoseOwnerWasNotAsked: its owner would stop for a member that may not
// begin.
func TestAPauseWithdrawsAMoveWhoseOwnerWasNotAsked(t *testing.T) {
	f := newFleet(t, 6, Options{Moves: 1}, "a", "b")
	f.run(time.Minute)
	f.slow["c"] = true
	f.join("c")
	var begun bool
	for range 600 {
		f.step()
		f.now += 100 * time.Millisecond
		if begun = len(f.d.moves) > 0; begun {
			break
		}
	}
	if !begun {
		t.Fatal("no move for balance has begun")
	}
	f.slow["c"] = false
	f.step() // the new member stands
	for _, m := range f.d.moves {
		m.asked = false
	}
	if out := f.d.step(f.now, f.v, false, false); !out.blocked || len(out.asks) != 0 {
		t.Errorf("whether moves are paused is not known: %+v", out)
	}
	f.paused = true
	if out := f.step(); len(out.asks) != 0 || len(f.d.moves) != 0 {
		t.Errorf("in a pause owners are asked: %+v; %d moves", out.asks, len(f.d.moves))
	}
}

func TestAnOwnerThatDiesDuringAMoveEndsIt(t *testing.T) {
	f := newFleet(t, 10, Options{}, "a", "b")
	f.run(3 * time.Second)
	f.deaf["a"], f.deaf["b"] = true, true
	f.join("c")
	f.run(3 * time.Second)
	if len(f.d.moves) != 1 {
		t.Fatalf("moves %v", f.d.moves)
	}
	for i := range f.d.moves {
		f.crash(f.v.shards[i].id)
		if f.v.shards[i].id != "c" {
			t.Errorf("shard %d is owned by %q, not by who stood in its line", i, f.v.shards[i].id)
		}
	}
	f.deaf = map[string]bool{}
	f.run(5 * time.Second)
	f.even()
}

// TestWhoIsRestartedFindsItsShards: while a member is away by a record nothing moves; without one
// its shards are given out at once.
func TestWhoIsRestartedFindsItsShards(t *testing.T) {
	f := newFleet(t, 60, Options{}, "a", "b", "c")
	f.run(3 * time.Second)
	var owned []int
	for i, s := range f.v.shards {
		if s.id == "b" {
			owned = append(owned, i)
		}
	}
	gone := []absence{{ID: "b", At: time.Now(), Grace: 30 * time.Second, Weight: 1, Shards: packShards(owned),
		token: f.member("b").token}}
	f.crash("b")
	away := func(d time.Duration) {
		for until := f.now + d; f.now < until; f.now += 100 * time.Millisecond {
			members := slices.Clone(f.v.members)
			f.v.keep(f.d.present(f.now, slices.Clone(gone)))
			slices.SortFunc(f.v.members, byID)
			f.step()
			f.v.members = members
		}
	}
	away(10 * time.Second)
	if n := f.loads(); n[""] != 20 || f.moved != 0 {
		t.Fatalf("loads %v and %d moves while b is being restarted", n, f.moved)
	}
	f.join("b")
	away(5 * time.Second)
	for _, i := range owned {
		if f.v.shards[i].id != "b" {
			t.Errorf("shard %d is owned by %q, not by b, which is back", i, f.v.shards[i].id)
		}
	}
	if f.moved != 0 {
		t.Errorf("%d moves for a restart", f.moved)
	}
	f.crash("b")
	gone[0].token = f.token + 1 // a restart from which it does not come back
	away(29 * time.Second)
	if n := f.loads()[""]; n != 20 {
		t.Errorf("%d shards wait within the grace, want 20", n)
	}
	away(3 * time.Second)
	if n := f.loads()[""]; n != 0 {
		t.Errorf("%d shards still wait after the grace", n)
	}
}

// TestRandomFleets: whatever happens, once it is quiet every shard has an owner, loads are even,
// and no more moves are under way than allowed.
func TestRandomFleets(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 7))
		f := newFleet(t, 32+r.IntN(100), Options{Cooldown: 5 * time.Second}, "m0", "m1", "m2")
		for step := range 40 {
			switch k := r.IntN(6); {
			case k < 2 && len(f.v.members) < 9:
				f.join(fmt.Sprintf("m%d", 3+step))
			case k == 2 && len(f.v.members) > 2:
				f.crash(f.v.members[r.IntN(len(f.v.members))].id)
			case k == 3:
				m := &f.v.members[r.IntN(len(f.v.members))]
				m.ready = !m.ready
			case k == 4:
				id := f.v.members[r.IntN(len(f.v.members))].id
				f.slow[id] = !f.slow[id]
			case k == 5:
				f.d = newDecider(f.d.n, f.d.o, f.next()) // another assigner
			}
			f.run(time.Duration(r.IntN(3000)) * time.Millisecond)
		}
		f.slow = map[string]bool{}
		for i := range f.v.members {
			f.v.members[i].ready = true
		}
		f.run(2 * time.Minute)
		f.even()
		if f.most > f.d.o.Moves {
			t.Fatalf("seed %d: %d moves under way, at most %d are allowed", seed, f.most, f.d.o.Moves)
		}
		before := f.moved
		f.run(2 * time.Minute)
		if f.moved != before {
			t.Fatalf("seed %d: %d shards move in a quiet fleet", seed, f.moved-before)
		}
	}
}

// TestAMemberWhoseHandlersFailGetsLittle: one broken member must not interrupt the shards of all
// others again and again.
func TestAMemberWhoseHandlersFailGetsLittle(t *testing.T) {
	f := newFleet(t, 64, Options{}, "a", "b")
	f.run(3 * time.Second)
	f.join("c")
	until := map[int]time.Duration{}
	fail := func(d time.Duration) {
		for end := f.now + d; f.now < end; f.now += 100 * time.Millisecond {
			f.step()
			c := f.member("c")
			for i := range f.v.shards {
				if f.v.shards[i].id == "c" {
					f.release(i)
					until[i] = f.now + time.Second
				}
			}
			c.avoid = nil
			for i := range f.v.shards {
				if until[i] > f.now {
					c.avoid = append(c.avoid, i)
				}
			}
		}
	}
	fail(10 * time.Minute)
	if f.moved == 0 || f.moved > 12 {
		t.Errorf("%d shards were moved to a member whose handlers fail at once, in ten minutes", f.moved)
	}
	c := f.member("c") // its fault is mended
	c.avoid = nil
	f.run(15 * time.Minute)
	f.even()
}

// TestWithdrawnTakesNeedAnother: a shard that nobody owns stays with the member that was told to
// take it while nobody else can, and with more time each time it goes to another.
func TestWithdrawnTakesNeedAnother(t *testing.T) {
	f := newFleet(t, 1, Options{}, "a")
	f.slow["a"], f.slow["b"] = true, true
	f.run(2 * time.Minute)
	out := f.step()
	if len(out.plan.takes) != 1 || out.plan.takes[0].to != f.member("a").token {
		t.Fatalf("takes %+v after two minutes: only a is there", out.plan.takes)
	}
	f.join("b")
	f.run(time.Second)
	to := func() primacy.Token { return f.step().plan.takes[0].to }
	if to() != f.member("b").token {
		t.Fatal("b did not get its chance")
	}
	f.run(55 * time.Second)
	if to() != f.member("b").token {
		t.Error("b got no more time than a had")
	}
}

// TestAShardThatArrivedStaysInThePlan: its owner may hear of its term after the next plan, and
// gives up a shard that the plan does not name.
func TestAShardThatArrivedStaysInThePlan(t *testing.T) {
	f := newFleet(t, 2, Options{}, "a")
	f.run(2 * time.Second)
	if out := f.step(); len(out.plan.takes) != 2 {
		t.Errorf("takes %+v within %v after the shards were taken", out.plan.takes, lingers)
	}
	f.run(lingers)
	if out := f.step(); len(out.plan.takes) != 0 {
		t.Errorf("takes %+v later than that", out.plan.takes)
	}
	f.join("b")
	f.run(2 * time.Second)
	out := f.step()
	if len(out.plan.takes) != 1 || len(out.plan.moves) != 0 || out.plan.takes[0].to != f.member("b").token {
		t.Errorf("plan %+v after a move that is done", out.plan)
	}
	f.release(out.plan.takes[0].shard) // it gave the shard up
	f.slow["b"], f.slow["a"] = true, true
	f.member("b").avoid = []int{out.plan.takes[0].shard}
	if out := f.step(); len(out.plan.takes) != 1 || out.plan.takes[0].to != f.member("a").token {
		t.Errorf("plan %+v after the shard was given up", out.plan)
	}
}

func TestAShardThatNobodyCanRunIsLookedAtLessAndLess(t *testing.T) {
	f := newFleet(t, 4, Options{}, "a")
	f.run(3 * time.Second)
	f.slow["a"] = true
	f.release(0)
	if out := f.step(); out.wake-f.now != watchEvery {
		t.Errorf("the next look is after %v", out.wake-f.now)
	}
	f.run(5 * time.Minute)
	if out := f.step(); out.wake-f.now != idleEvery {
		t.Errorf("five minutes later the next look is after %v", out.wake-f.now)
	}
}

// TestShardsOfWhoLeavesWaitForNoOtherMove: neither for the slots of others, nor for a member that
// does not get ready.
func TestShardsOfWhoLeavesWaitForNoOtherMove(t *testing.T) {
	f := newFleet(t, 48, Options{}, "a", "b") // one move at a time
	f.run(3 * time.Second)
	f.slow["z"] = true
	f.join("z")
	f.run(3 * time.Second)
	f.member("b").draining = true
	f.run(DefaultLeaveTimeout)
	if n := f.loads(); n["b"] != 0 || n["a"] != 48 {
		t.Errorf("loads %v once b has left", n)
	}
}

func TestLooksThatCostMuchAreRare(t *testing.T) {
	for _, test := range []struct{ cost, wake, gap, next time.Duration }{
		{0, watchEvery, lookGap, watchEvery},
		{0, idleEvery, lookGap, idleEvery},
		{time.Millisecond, idleEvery, lookGap, idleEvery},
		{time.Second, watchEvery, time.Second, time.Second},
		{time.Second, idleEvery, time.Second, 20 * time.Second},
		{5 * time.Second, idleEvery, 5 * time.Second, restMost},
	} {
		if gap, next := waits(test.cost, test.wake); gap != test.gap || next != test.next {
			t.Errorf("after a look of %v: not for %v, in any case after %v; want %v, %v",
				test.cost, gap, next, test.gap, test.next)
		}
	}
}

// TestACheckThatFailsForAllMovesNothing: members do not become unready at the same instant, and
// what moved to the last of them would have moved for nothing.
func TestACheckThatFailsForAllMovesNothing(t *testing.T) {
	f := newFleet(t, 60, Options{Moves: 10}, "a", "b", "c")
	f.run(3 * time.Second)
	for _, id := range []string{"a", "b", "c"} {
		f.member(id).ready = false
		f.run(3 * time.Second)
	}
	f.run(time.Minute)
	if f.moved != 0 {
		t.Errorf("%d shards moved between members that are all unready", f.moved)
	}
	for _, id := range []string{"a", "b", "c"} {
		f.member(id).ready = true
	}
	f.run(3 * time.Second)
	f.member("a").ready = false
	for range 8 { // others that come and go do not put it off for ever
		f.run(3 * time.Second)
		f.member("b").ready = !f.member("b").ready
	}
	if n := f.loads(); n["a"] != 0 {
		t.Errorf("loads %v: a, which alone is unready, keeps its shards", n)
	}
}

// TestHandlersThatDoNotReturnDoNotEndAllMoves, also where there are more of them than moves can be
// under way.
func TestHandlersThatDoNotReturnDoNotEndAllMoves(t *testing.T) {
	f := newFleet(t, 360, Options{Moves: movesMost}, "a", "b", "c")
	f.run(3 * time.Second)
	f.deaf["a"] = true
	f.member("a").ready = false
	f.run(5 * time.Minute)
	if n := len(f.d.moves); n != movesMost {
		t.Fatalf("%d moves under way", n)
	}
	f.join("d")
	f.run(5 * time.Minute)
	if n := f.loads(); n["d"] < 20 {
		t.Errorf("loads %v: d got nothing from b and c while a did not hand over", n)
	}
	f.deaf["a"] = false
	f.run(15 * time.Minute)
	if n := f.loads(); n["a"] != 0 {
		t.Errorf("loads %v: a keeps shards that it would hand over again", n)
	}
}

// TestAMoveOfWhoLeavesIsADrain, also where it began for another reason: its owner does not wait for
// as long as a new member may take, nor for the end of a pause.
func TestAMoveOfWhoLeavesIsADrain(t *testing.T) {
	f := newFleet(t, 12, Options{Moves: 12}, "a", "b")
	f.run(3 * time.Second)
	f.slow["c"] = true
	f.join("c")
	f.run(3 * time.Second)
	if n := len(f.d.moves); n != 4 {
		t.Fatalf("%d moves under way", n)
	}
	f.paused = true
	f.member("a").draining = true
	f.run(5 * time.Second)
	if n := f.loads(); n["a"] != 0 {
		t.Errorf("loads %v: shards of a wait for c", n)
	}
}
