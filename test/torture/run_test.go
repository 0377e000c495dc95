//go:build linux

package torture

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/onethread"
	"github.com/primacy-go/primacy/internal/programtest"
	"github.com/primacy-go/primacy/internal/safety"
)

// TestRun is the promise of `primacy run` against real faults, as seen in what the commands wrote.
func TestRun(t *testing.T) {
	t.Parallel()
	n := knob(t, "TORTURE_ROUNDS", briefly(3, 20))
	a := newRun(t, onEtcd(), 3, newSeededRand(t))
	a.rounds(plan(a.rng, n, a.faults()))
	a.positiveControl()
}

// newSeededRand returns random numbers for a run, and prints their seed.
func newSeededRand(t testing.TB) *rand.Rand {
	t.Helper()
	seed := newSeed(t)
	t.Logf("TORTURE_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// rounds injects each of them into the leader in turn, and judges what the commands wrote.
func (a *run) rounds(row []checkedFault) *tale {
	a.Helper()
	gaps := map[string]spread{}
	for i, f := range row {
		a.round(i+1, f, gaps)
	}
	a.settled() // the last fault is over, and somebody leads
	tale := a.verify()
	for _, f := range a.faults() {
		a.Logf("nobody acted after %-18s %v", f.name+":", gaps[f.name])
		tale.longest = max(tale.longest, slices.Max(append(gaps[f.name], 0)))
	}
	return tale
}

// plan returns n faults in a random order, all kinds equally often.
func plan(rng *rand.Rand, n int, kinds []checkedFault) []checkedFault {
	var p []checkedFault
	for len(p) < n {
		all := slices.Clone(kinds)
		rng.Shuffle(len(all), func(i, k int) { all[i], all[k] = all[k], all[i] })
		p = append(p, all...)
	}
	return p[:n]
}

func (a *run) round(number int, f checkedFault, gaps map[string]spread) {
	a.Helper()
	var v *victim
	var note []any
	var begin time.Duration
	defer func() {
		if a.Failed() && v != nil {
			a.Logf("%2d %s: failed, with %s leading under token %d", number, f.name, v.id, v.token)
		}
	}()
	for try := 1; v == nil || isMissed(note); try++ { // it lost its term while we looked, or aimed
		if try > 10 {
			a.Fatalf("%2d %s: ten leaders in a row have lost their terms before it", number, f.name)
		}
		if v = a.settled(); v == nil {
			continue
		}
		begin = boottime.Now()
		note = f.inject(a, v)
		if v.watch != nil {
			v.watch.end()
		}
	}
	if !v.running() {
		a.up(v.node)
	}
	a.acts.poll(a)
	gap := time.Duration(0)
	if a.acts.top.token > v.token {
		gap = a.acts.gap(a.acts.top.token, a.thaws)
		gaps[f.name] = append(gaps[f.name], gap)
	}
	ms := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
	for i, n := range note {
		if d, ok := n.(time.Duration); ok {
			note[i] = ms(d)
		}
	}
	a.Logf("%2d %-17s %s token %d, next %d (%s): nobody acted for %v; took %v %v", number, f.name, v.id, v.token,
		a.acts.top.token,
		a.acts.top.id, ms(gap), ms(boottime.Now()-begin), note)
	if a.Failed() {
		a.FailNow() // what follows would be judged by a state nobody expects
	}
}

// tale is what there is to tell of all rounds.
type tale struct {
	acts, terms int
	overlaps    []safety.Overlap
	longest     time.Duration // without a leader
}

// verify is the judgement over all rounds.
func (a *run) verify() *tale {
	a.Helper()
	a.acts.poll(a)
	terms, err := a.acts.history(a.thaws)
	if err != nil {
		a.Fatal(err)
	}
	if err := safety.Check(terms); err != nil {
		a.Errorf("the promise was broken: %v", err)
	}
	var led time.Duration
	for _, h := range terms {
		led += h.To - h.From
	}
	// Two write every 5 ms; with far fewer the intervals would say little. Beside all other tests
	// they get a processor less often.
	if want := int(led/actEvery) / briefly(20, 2); len(a.acts.acts) < want {
		a.Errorf("got %d acts in %v of terms, want at least %d", len(a.acts.acts), led, want)
	}
	lateActs := 0
	for _, act := range a.acts.acts {
		if isLate(act, a.thaws) {
			lateActs++
		}
	}
	refused, unexpected := a.acts.fence(a.thaws)
	a.Logf("%d acts in %d terms; late acts after a thaw: %d in %d thaws; a fence refuses %d", len(a.acts.acts),
		len(terms), lateActs,
		len(a.thaws), refused)
	if unexpected != 0 {
		a.Errorf("a fence had to refuse %d acts that followed no thaw", unexpected)
	}
	if refused < lateActs {
		a.Errorf("a fence let %d late acts pass", lateActs-refused)
	}
	return &tale{len(a.acts.acts), len(terms), safety.Overlaps(terms), 0}
}

// positiveControl shows that the checks see what they are there for: a worker that was started past
// primacy goes on acting under a token of a supervisor that is killed.
func (a *run) positiveControl() {
	a.Helper()
	v := a.settled()
	for v == nil {
		v = a.settled()
	}
	v.watch.end()
	rogue := v.rogue(a)
	v.supervisor.signal(a, syscall.SIGKILL)
	a.wantExit(v, exitKilled)
	deadline := v.bound(a, a.ttl)
	a.next(v)
	// The rogue acts every 5 ms when a busy machine lets it: its next act may come a while after
	// the other's first, and after the deadline.
	acts := func() time.Duration {
		last := readActs(a, v.ownFile(a.own, rogue))
		return last[len(last)-1].at
	}
	next := a.acts.top.at
	eventually(a, time.Minute, "the rogue to act beside the next", func() bool { return acts() > next })
	a.acts.poll(a)
	terms, err := a.acts.history(a.thaws)
	if err != nil {
		a.Fatal(err)
	}
	err = safety.Check(terms)
	if err == nil || !strings.Contains(err.Error(), "two leaders at once") {
		a.Errorf("positive control: two act at once, and the history checker says: %v", err)
	}
	if _, unexpected := a.acts.fence(a.thaws); unexpected == 0 {
		a.Error("positive control: two act at once, and a fence refuses nothing")
	}
	if waitUntil(deadline); rogue.dead() {
		a.Error("positive control: the rogue is not seen alive after the deadline")
	}
	eventually(a, time.Minute, "the rogue's own file to show that it acts after the deadline",
		func() bool { return acts() >= deadline })
	a.Logf("positive control: %v", err)
	rogue.signal(a, syscall.SIGKILL)
}

// rogue starts a worker in a session of its own that nobody supervises, with the victim's token.
func (v *victim) rogue(a *run) proc {
	a.Helper()
	self, err := os.Executable()
	if err != nil {
		a.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(slices.Clone(os.Environ()), helperEnv+"=act", roleEnv+"=rogue", actsEnv+"="+a.acts.path,
		ownEnv+"="+a.own,
		fmt.Sprintf("PRIMACY_TOKEN=%d", v.token), "PRIMACY_ID="+v.id)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	onethread.Do(func() { err = cmd.Start() })
	if err != nil {
		a.Fatal(err)
	}
	a.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	p := find(a, cmd.Process.Pid, "rogue")
	eventually(a, time.Minute, "the rogue to act", func() bool {
		info, err := os.Stat(v.ownFile(a.own, p))
		return err == nil && info.Size() > 0
	})
	return p
}

const (
	electionName = "torture"
	runTTL       = 3 * time.Second
)

// run is a store, candidates that reach it through proxies of their own, and what their commands
// write.
type run struct {
	*testing.T
	*storeUnder
	rng      *rand.Rand
	store    *installed
	election *primacy.Election // to ask who stands in the line
	nodes    []*node
	acts     *journal
	own      string // folder with a file for each process that acts
	thaws    []late
	seen     []proc // everything that must be gone at the end
	ended    bool
	isolated bool // the candidates have --isolate pid
}

func newRun(t *testing.T, under *storeUnder, candidates int, rng *rand.Rand) *run {
	t.Helper()
	return newRunOf(t, under, candidates, rng, false)
}

func newRunOf(t *testing.T, under *storeUnder, candidates int, rng *rand.Rand, isolated bool) *run {
	t.Helper()
	bin, err := programtest.Program()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	a := &run{T: t, storeUnder: under, rng: rng, store: under.start(t),
		acts: &journal{path: filepath.Join(dir, "acts")}, own: filepath.Join(dir, "own"), isolated: isolated}
	a.election = a.store.session(t, a.ttl).Election(electionName)
	if err := os.Mkdir(a.own, 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range candidates {
		a.up(a.add(fmt.Sprintf("node-%d", i+1), dir, bin))
	}
	t.Cleanup(a.down)
	return a
}

// add makes a candidate that does not run yet.
func (a *run) add(id, dir, bin string) *node {
	a.Helper()
	n := &node{id: id, dir: dir, bin: bin, untold: a.noTokens, isolated: a.isolated}
	n.links, n.url = a.store.links(a)
	if err := os.Mkdir(n.runDir(), 0o700); err != nil {
		a.Fatal(err)
	}
	a.nodes = append(a.nodes, n)
	return n
}

// renewEvery is how often candidates renew.
func (a *run) renewEvery() time.Duration { return a.ttl / 5 }

// up starts a candidate. Its command is deaf to SIGTERM, or its grandchild has a session of its
// own, or both, as it comes.
func (a *run) up(n *node) {
	a.Helper()
	env := []string{actsEnv + "=" + a.acts.path, ownEnv + "=" + a.own}
	for _, choice := range []string{setsidEnv, deafEnv} {
		if a.rng.IntN(2) == 0 {
			env = append(env, choice+"=yes")
		}
	}
	n.up(a, electionName, a.ttl, env...)
}

// down ends everything, thawed if it was frozen, and looks that nothing is left. The servers must
// still run.
func (a *run) down() {
	if a.ended {
		return
	}
	a.ended = true
	var downs sync.WaitGroup
	for _, n := range a.nodes {
		n.heal()
		downs.Go(n.down)
	}
	downs.Wait()
	for _, n := range a.nodes {
		if a.Failed() {
			a.Logf("the end of %s's log:\n%s", n.id, n.logTail())
		}
	}
	for _, p := range a.seen {
		if !within(time.Minute, p.dead) {
			a.Errorf("%v was left behind", p)
		}
	}
	if !a.Failed() {
		a.ghosts()
	}
}

// settled waits until all candidates stand in the line and the first of them acts, and returns that
// one.
func (a *run) settled() *victim {
	a.Helper()
	var state primacy.State
	var err error
	ok := within(2*time.Minute, func() bool {
		a.upAgain(nil)
		a.acts.poll(a)
		if a.noTokens {
			return boottime.Now()-a.acts.top.at < 300*time.Millisecond && a.members(a.acts.top.token) != nil
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		var asked error
		if state, asked = a.election.State(ctx); asked != nil {
			err = asked
			return false
		}
		return state.Leader != nil && a.everybodyStands(state) && a.members(uint64(state.Leader.Token)) != nil &&
			a.acts.top.token == uint64(state.Leader.Token)
	})
	if !ok {
		a.Fatalf("the candidates do not settle: %+v, last trouble: %v", state, err)
	}
	if a.noTokens {
		return a.victim(a.acts.top.id, a.acts.top.token)
	}
	return a.victim(state.Leader.ID, uint64(state.Leader.Token))
}

func (a *run) everybodyStands(s primacy.State) bool {
	ids := map[string]bool{s.Leader.ID: true}
	for _, w := range s.Waiting {
		ids[w.ID] = true
	}
	return len(ids) == len(a.nodes) && len(s.Waiting) == len(a.nodes)-1
}

// members returns the processes that have acted under token, nil if not both roles have.
func (a *run) members(token uint64) []proc {
	entries, _ := os.ReadDir(a.own)
	var found []proc
	for _, e := range entries {
		f := strings.Split(e.Name(), ".")
		if f[0] != strconv.FormatUint(token, 10) || len(readActs(a, filepath.Join(a.own, e.Name()))) == 0 {
			continue
		}
		number, _ := strconv.Atoi(f[2])
		pid := number
		if a.isolated {
			pid = outside(number, token)
		}
		st, _ := statOf(pid)
		found = append(found, proc{pid, f[1], st.start, number})
	}
	if len(found) != 2 {
		return nil
	}
	return found
}

// victim gathers what belongs to the leader. Nil if its term is over already.
func (a *run) victim(leader string, token uint64) *victim {
	a.Helper()
	for _, n := range a.nodes {
		if n.id != leader {
			continue
		}
		pid := n.cmd.Process.Pid
		guardian, ok := childOf(pid, "__guardian")
		r, has := n.right(pid)
		if !ok || !has || !n.untold && r.Token != token {
			return nil
		}
		v := &victim{node: n, token: token, supervisor: find(a, pid, "supervisor"),
			guardian: find(a, guardian, "guardian"),
			members:  a.members(token), watch: n.watchRight(pid)}
		a.seen = append(append(a.seen, v.supervisor, v.guardian), v.members...)
		return v
	}
	a.Fatalf("%q leads, which is none of ours", leader)
	return nil
}

// deadBy fails the test unless the command and its child are dead at that instant, by what /proc
// says then and by what they wrote. It returns how long before it they acted last.
func (a *run) deadBy(v *victim, deadline time.Duration) time.Duration {
	a.Helper()
	waitUntil(deadline)
	for _, m := range v.members {
		if m.dead() {
			continue
		}
		looked := boottime.Now()
		gone := within(time.Minute, m.dead)
		a.Errorf("%v of %s was alive %v after its deadline (gone at last: %v, %v after it)", m, v.id, looked-deadline,
			gone,
			boottime.Now()-deadline)
	}
	return a.actedBefore(v, deadline)
}

func (a *run) actedBefore(v *victim, deadline time.Duration) time.Duration {
	a.Helper()
	spare := time.Duration(1<<63 - 1)
	for m, at := range v.lastActs(a, a.own) {
		if at >= deadline {
			a.Errorf("%v of %s acted %v after its deadline", m, v.id, at-deadline)
		}
		spare = min(spare, deadline-at)
	}
	return spare
}

// next waits until somebody acts under a larger token than the victim's.
func (a *run) next(v *victim) {
	a.Helper()
	eventually(a, 2*time.Minute, fmt.Sprintf("a term after token %d", v.token), func() bool {
		a.upAgain(v.node)
		a.acts.poll(a)
		return a.acts.top.token > v.token && a.members(a.acts.top.token) != nil
	})
}

// upAgain starts those that have ended, as any service would be: a busy machine may cost a term.
// But for one, if it is not nil.
func (a *run) upAgain(but *node) {
	a.Helper()
	for _, n := range a.nodes {
		if n != but && !n.running() {
			a.Logf("unplanned: %s has ended with %d:\n%s", n.id, n.exit(a), n.logTail())
			a.up(n)
		}
	}
}

// wantExit waits for the end of the process and looks how it ended.
func (a *run) wantExit(v *victim, want int) {
	a.Helper()
	if got := v.exit(a); got != want {
		a.Errorf("%s ended with %d, want %d; its log ends with:\n%s", v.id, got, want, v.logTail())
	}
}
