//go:build linux

package torture

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/history"
	"github.com/primacy-go/primacy/internal/onethread"
)

// TestRun is the promise of `primacy run` against real faults, as seen in what the commands wrote.
func TestRun(t *testing.T) {
	n := knob(t, "TORTURE_ROUNDS", 20)
	seed := uint64(knob(t, "TORTURE_SEED", int(time.Now().UnixNano()&0xffffff)+1))
	t.Logf("TORTURE_SEED=%d, %d rounds, ttl %v", seed, n, runTTL)
	rng := rand.New(rand.NewPCG(seed, 0))
	a := newArena(t, onEtcd(), 3, rng)
	a.rounds(plan(rng, n, a.faults()))
	a.positiveControl()
}

// rounds strikes the leader with each of them in turn, and judges what the commands wrote.
func (a *arena) rounds(row []fault) *tale {
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
func plan(rng *rand.Rand, n int, kinds []fault) []fault {
	var p []fault
	for len(p) < n {
		all := slices.Clone(kinds)
		rng.Shuffle(len(all), func(i, k int) { all[i], all[k] = all[k], all[i] })
		p = append(p, all...)
	}
	return p[:n]
}

func (a *arena) round(number int, f fault, gaps map[string]spread) {
	a.Helper()
	v := a.settled()
	for v == nil { // it lost its term while we looked
		v = a.settled()
	}
	begin := boottime.Now()
	note := f.strike(a, v)
	if v.watch != nil {
		v.watch.end()
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
	a.Logf("%2d %-17s %s token %d, next %d (%s): nobody acted for %v; took %v %v", number, f.name, v.id, v.token, a.acts.top.token,
		a.acts.top.id, ms(gap), ms(boottime.Now()-begin), note)
	if a.Failed() {
		a.FailNow() // what follows would be judged by a state nobody expects
	}
}

// tale is what there is to tell of all rounds.
type tale struct {
	acts, terms int
	overlaps    []history.Overlap
	longest     time.Duration // without a leader
}

// verify is the judgement over all rounds.
func (a *arena) verify() *tale {
	a.Helper()
	a.acts.poll(a)
	terms, err := a.acts.history(a.thaws)
	if err != nil {
		a.Fatal(err)
	}
	if err := history.Check(terms); err != nil {
		a.Errorf("the promise was broken: %v", err)
	}
	var led time.Duration
	for _, h := range terms {
		led += h.To - h.From
	}
	// Two write every 5 ms; with far fewer the intervals would say little.
	if want := int(led / actEvery / 2); len(a.acts.acts) < want {
		a.Errorf("got %d acts in %v of terms, want at least %d", len(a.acts.acts), led, want)
	}
	lateActs := 0
	for _, act := range a.acts.acts {
		if isLate(act, a.thaws) {
			lateActs++
		}
	}
	refused, unexpected := a.acts.fence(a.thaws)
	a.Logf("%d acts in %d terms; late acts after a thaw: %d in %d thaws; a fence refuses %d", len(a.acts.acts), len(terms), lateActs,
		len(a.thaws), refused)
	if unexpected != 0 {
		a.Errorf("a fence had to refuse %d acts that followed no thaw", unexpected)
	}
	if refused < lateActs {
		a.Errorf("a fence let %d late acts pass", lateActs-refused)
	}
	return &tale{len(a.acts.acts), len(terms), history.Overlaps(terms), 0}
}

// positiveControl shows that the checks see what they are there for: a worker that was started past primacy goes on acting
// under a token of a supervisor that is killed.
func (a *arena) positiveControl() {
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
	// The rogue acts every 5 ms when a busy machine lets it: its next act may come a while after the other's first, and after the deadline.
	acts := func() time.Duration {
		last := readActs(a, v.ownFile(a.own, rogue))
		return last[len(last)-1].at
	}
	next := a.acts.top.at
	eventually(a, 20*time.Second, "the rogue to act beside the next", func() bool { return acts() > next })
	a.acts.poll(a)
	terms, err := a.acts.history(a.thaws)
	if err != nil {
		a.Fatal(err)
	}
	err = history.Check(terms)
	if err == nil || !strings.Contains(err.Error(), "two leaders at once") {
		a.Errorf("positive control: two act at once, and the history checker says: %v", err)
	}
	if _, unexpected := a.acts.fence(a.thaws); unexpected == 0 {
		a.Error("positive control: two act at once, and a fence refuses nothing")
	}
	if waitUntil(deadline); rogue.dead() {
		a.Error("positive control: the rogue is not seen alive after the deadline")
	}
	eventually(a, 20*time.Second, "the rogue's own file to show that it acts after the deadline", func() bool { return acts() >= deadline })
	a.Logf("positive control: %v", err)
	rogue.signal(a, syscall.SIGKILL)
}

// rogue starts a worker in a session of its own that nobody supervises, with the victim's token.
func (v *victim) rogue(a *arena) proc {
	a.Helper()
	self, err := os.Executable()
	if err != nil {
		a.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(slices.Clone(os.Environ()), helperEnv+"=act", roleEnv+"=rogue", actsEnv+"="+a.acts.path, ownEnv+"="+a.own,
		fmt.Sprintf("PRIMACY_TOKEN=%d", v.token), "PRIMACY_ID="+v.id)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	onethread.Do(func() { err = cmd.Start() })
	if err != nil {
		a.Fatal(err)
	}
	a.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	p := find(a, cmd.Process.Pid, "rogue")
	eventually(a, 20*time.Second, "the rogue to act", func() bool {
		info, err := os.Stat(v.ownFile(a.own, p))
		return err == nil && info.Size() > 0
	})
	return p
}
