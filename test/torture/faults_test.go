//go:build linux

package torture

import (
	"syscall"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/servertest"
)

// checkedFault does harm to a leader, sees that the promises hold, and undoes it. When it returns,
// the leader's process has ended unless it may lead on. What it returns is for the log. It returns
// missed if the term was over before: a busy machine may cost it.
type checkedFault struct {
	name   string
	inject func(*run, *victim) (note []any)
}

// missed is what a fault returns that has met no leader.
var missed = []any{"missed"}

func isMissed(note []any) bool { return len(note) == 1 && note[0] == missed[0] }

// faults are the kinds, each as often in a row as it is here.
func (a *run) faults() []checkedFault {
	all := []checkedFault{
		{"kill supervisor", killSupervisor},
		{"freeze supervisor", freezeSupervisor},
		{"freeze all", freezeAll},
		{"kill command", killCommand},
		{"blackhole", blackhole},
	}
	all = append(all, pairs(a.isolated)...)
	if servertest.CgroupRoot() != "" {
		all = append(all, checkedFault{"freeze cgroup", freezeCgroup})
	}
	for _, tr := range a.store.troubles {
		all = append(all, tr.checked())
	}
	return all
}

// The exit codes of `primacy run`.
const (
	exitLost   = 122
	exitKilled = 128 + int(syscall.SIGKILL)
)

func killSupervisor(a *run, v *victim) []any {
	if !v.aim(a, a.rng.Float64(), a.renewEvery()) {
		return missed
	}
	v.supervisor.signal(a, syscall.SIGKILL)
	a.wantExit(v, exitKilled)
	spare := a.deadBy(v, v.bound(a, a.ttl))
	a.next(v)
	return []any{"acted last before the deadline", spare}
}

// freezeSupervisor: its guardian ends the command, and the kernel wakes the supervisor at the
// deadline.
func freezeSupervisor(a *run, v *victim) []any {
	if !v.aim(a, a.rng.Float64(), a.renewEvery()) {
		return missed
	}
	freeze(a, v.supervisor)
	spare := a.deadBy(v, v.bound(a, a.ttl))
	a.next(v)
	a.wantExit(v, exitLost)
	return []any{"acted last before the deadline", spare}
}

// freezeAll suspends the supervisor, its guardian and the command. The kernel wakes the guardian at
// the deadline, which kills the command while that is suspended: nothing acts again.
func freezeAll(a *run, v *victim) []any {
	if !v.aim(a, a.rng.Float64(), a.renewEvery()) {
		return missed
	}
	freeze(a, append([]proc{v.supervisor, v.guardian}, v.members...)...)
	frozen := boottime.Now()
	spare := a.deadBy(v, v.bound(a, a.ttl))
	for m, at := range v.lastActs(a, a.own) {
		if at > frozen {
			a.Errorf("%v acted %v after all were frozen", m, at-frozen)
		}
	}
	a.next(v)
	a.wantExit(v, exitLost)
	return []any{"acted last before the deadline", spare}
}

func (v *victim) countActs(a *run, own string) (n int) {
	for _, m := range v.members {
		n += len(readActs(a, v.ownFile(own, m)))
	}
	return n
}

func killCommand(a *run, v *victim) []any {
	if !v.stands() {
		return missed
	}
	var left proc
	for _, m := range v.members {
		if m.role == child {
			m.signal(a, syscall.SIGKILL)
		} else {
			left = m
		}
	}
	a.wantExit(v, exitKilled)
	if !left.dead() {
		a.Errorf("%v lives though `primacy run` has ended", left)
	}
	a.next(v)
	return nil
}

// blackhole holds what the supervisor sends, or what it is sent, or both.
func blackhole(a *run, v *victim) []any {
	if !v.aim(a, a.rng.Float64(), a.renewEvery()) {
		return missed
	}
	dirs := [][]etcdtest.Dir{{etcdtest.Up}, {etcdtest.Down}, {etcdtest.Up, etcdtest.Down}}[a.rng.IntN(3)]
	v.hold(dirs...)
	spare := a.gaveUp(v)
	a.next(v)
	v.heal()
	a.wantExit(v, exitLost)
	return []any{"acted last before the deadline", spare, "held", len(dirs)}
}

// gaveUp waits until a supervisor that runs but cannot renew has ended its command, and looks that
// it was in time.
func (a *run) gaveUp(v *victim) time.Duration {
	a.Helper()
	for _, m := range v.members {
		eventually(a, time.Minute, m.String()+" to be ended", m.dead)
	}
	seen := boottime.Now()
	deadline := v.watch.end().Deadline
	v.watch = nil
	if seen > deadline {
		a.Logf("seen dead %v after the deadline of %s", seen-deadline, v.id) // what it wrote says when that was
	}
	return a.actedBefore(v, deadline)
}

// livesOn waits until the term has renewed its right, or has ended.
func (a *run) livesOn(v *victim) bool {
	a.Helper()
	now := boottime.Now()
	eventually(a, time.Minute, "a renewal or the end of the term", func() bool {
		r, ok := v.right(v.supervisor.pid)
		return !ok || r.Deadline > now+a.ttl*6/10
	})
	_, ok := v.right(v.supervisor.pid)
	return ok
}
