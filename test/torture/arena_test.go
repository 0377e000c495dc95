//go:build linux

package torture

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/programtest"
)

const (
	electionName = "torture"
	runTTL       = 3 * time.Second
)

// arena is a store, candidates that reach it through proxies of their own, and what their commands write.
type arena struct {
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
}

func newArena(t *testing.T, under *storeUnder, candidates int, rng *rand.Rand) *arena {
	t.Helper()
	bin, err := programtest.Program()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	a := &arena{T: t, storeUnder: under, rng: rng, store: under.start(t), acts: &journal{path: filepath.Join(dir, "acts")}, own: filepath.Join(dir, "own")}
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
func (a *arena) add(id, dir, bin string) *node {
	a.Helper()
	n := &node{id: id, dir: dir, bin: bin, untold: a.noTokens}
	n.links, n.url = a.store.links(a)
	if err := os.Mkdir(n.runDir(), 0o700); err != nil {
		a.Fatal(err)
	}
	a.nodes = append(a.nodes, n)
	return n
}

// renewEvery is how often candidates renew.
func (a *arena) renewEvery() time.Duration { return a.ttl / 5 }

// up starts a candidate. Its command is deaf to SIGTERM, or its grandchild has a session of its own, or both, as it comes.
func (a *arena) up(n *node) {
	a.Helper()
	env := []string{actsEnv + "=" + a.acts.path, ownEnv + "=" + a.own}
	for _, choice := range []string{setsidEnv, deafEnv} {
		if a.rng.IntN(2) == 0 {
			env = append(env, choice+"=yes")
		}
	}
	n.up(a, electionName, a.ttl, env...)
}

// down ends everything, thawed if it was frozen, and looks that nothing is left. The servers must still run.
func (a *arena) down() {
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
		if !within(10*time.Second, p.dead) {
			a.Errorf("%v was left behind", p)
		}
	}
	if !a.Failed() {
		a.ghosts()
	}
}

// settled waits until all candidates stand in the line and the first of them acts, and returns that one.
func (a *arena) settled() *victim {
	a.Helper()
	var state primacy.State
	var err error
	ok := within(60*time.Second, func() bool {
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

func (a *arena) everybodyStands(s primacy.State) bool {
	ids := map[string]bool{s.Leader.ID: true}
	for _, w := range s.Waiting {
		ids[w.ID] = true
	}
	return len(ids) == len(a.nodes) && len(s.Waiting) == len(a.nodes)-1
}

// members returns the processes that have acted under token, nil if not both roles have.
func (a *arena) members(token uint64) []proc {
	entries, _ := os.ReadDir(a.own)
	var found []proc
	for _, e := range entries {
		f := strings.Split(e.Name(), ".")
		if f[0] != strconv.FormatUint(token, 10) || len(readActs(a, filepath.Join(a.own, e.Name()))) == 0 {
			continue
		}
		pid, _ := strconv.Atoi(f[2])
		st, _ := statOf(pid)
		found = append(found, proc{pid, f[1], st.start})
	}
	if len(found) != 2 {
		return nil
	}
	return found
}

// victim gathers what belongs to the leader. Nil if its term is over already.
func (a *arena) victim(leader string, token uint64) *victim {
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
		v := &victim{node: n, token: token, supervisor: find(a, pid, "supervisor"), guardian: find(a, guardian, "guardian"),
			members: a.members(token), watch: n.watchRight(pid)}
		a.seen = append(append(a.seen, v.supervisor, v.guardian), v.members...)
		return v
	}
	a.Fatalf("%q leads, which is none of ours", leader)
	return nil
}

// deadBy fails the test unless the command and its child are dead at that instant, by what /proc says then and by what
// they wrote. It returns how long before it they acted last.
func (a *arena) deadBy(v *victim, deadline time.Duration) time.Duration {
	a.Helper()
	waitUntil(deadline)
	for _, m := range v.members {
		if m.dead() {
			continue
		}
		looked := boottime.Now()
		gone := within(10*time.Second, m.dead)
		a.Errorf("%v of %s was alive %v after its deadline (gone at last: %v, %v after it)", m, v.id, looked-deadline, gone,
			boottime.Now()-deadline)
	}
	return a.actedBefore(v, deadline)
}

func (a *arena) actedBefore(v *victim, deadline time.Duration) time.Duration {
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
func (a *arena) next(v *victim) {
	a.Helper()
	eventually(a, 60*time.Second, fmt.Sprintf("a term after token %d", v.token), func() bool {
		a.upAgain(v.node)
		a.acts.poll(a)
		return a.acts.top.token > v.token && a.members(a.acts.top.token) != nil
	})
}

// upAgain starts those that have ended, as any service would be: a busy machine may cost a term. But for one, if it is not nil.
func (a *arena) upAgain(but *node) {
	a.Helper()
	for _, n := range a.nodes {
		if n != but && !n.running() {
			a.Logf("unplanned: %s has ended with %d:\n%s", n.id, n.exit(a), n.logTail())
			a.up(n)
		}
	}
}

// wantExit waits for the end of the process and looks how it ended.
func (a *arena) wantExit(v *victim, want int) {
	a.Helper()
	if got := v.exit(a); got != want {
		a.Errorf("%s ended with %d, want %d; its log ends with:\n%s", v.id, got, want, v.logTail())
	}
}
