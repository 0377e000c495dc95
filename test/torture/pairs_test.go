//go:build linux

package torture

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/safety"
	"github.com/primacy-go/primacy/internal/servertest"
)

// TestRunIsolated is TestRun with --isolate pid. There the kernel ends the command with its
// guardian, also when supervisor and guardian are killed at one instant, or a cgroup freezes them.
func TestRunIsolated(t *testing.T) {
	onlyInVerify(t)
	t.Parallel()
	a := newRunOf(t, onEtcd(), 3, newSeededRand(t), true)
	a.rounds(plan(a.rng, knob(t, "TORTURE_ROUNDS", 20), a.faults()))
}

// harm is what a fault does to one of a leader's processes.
type harm struct {
	role string // supervisor, guardian or command
	sig  syscall.Signal
}

func (h harm) String() string {
	return map[syscall.Signal]string{syscall.SIGKILL: "kill ", syscall.SIGSTOP: "freeze "}[h.sig] + h.role
}

// pairs are all faults that kill or freeze two of supervisor, guardian and command at one instant.
// Without a namespace one is left out: nobody ends the grandchild when supervisor and guardian are
// both killed.
func pairs(isolated bool) (all []checkedFault) {
	for _, roles := range [][2]string{{"supervisor", "guardian"}, {"supervisor", "command"}, {"guardian", "command"}} {
		for _, first := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
			for _, second := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
				one, two := harm{roles[0], first}, harm{roles[1], second}
				if !isolated && roles[1] == "guardian" && first == second && first == syscall.SIGKILL {
					continue
				}
				all = append(all, checkedFault{one.String() + ", " + two.String(), func(a *run, v *victim) []any {
					return harmTwo(a, v, one, two)
				}})
			}
		}
	}
	return all
}

// harmTwo does both and sees that nothing of the command acts after the deadline.
func harmTwo(a *run, v *victim, one, two harm) []any {
	if !v.aim(a, a.rng.Float64(), a.renewEvery()) {
		return missed
	}
	begin := boottime.Now()
	for _, h := range []harm{one, two} { // supervisor and guardian first stop, so that neither sees the other's end
		if h.role != "command" {
			v.send(a, harm{h.role, syscall.SIGSTOP})
		}
	}
	v.send(a, one)
	v.send(a, two)
	if one == (harm{"guardian", syscall.SIGSTOP}) && two.sig == syscall.SIGSTOP {
		return v.leadsOn(a, begin)
	}
	var spare time.Duration
	if one.role == "supervisor" {
		spare = a.deadBy(v, v.bound(a, a.ttl))
	} else { // the supervisor lives, and renews until it has given the term up
		spare = a.gaveUp(v)
	}
	a.next(v)
	return []any{"acted last before the deadline", spare, "exit", v.exit(a)}
}

// leadsOn is for a guardian and a command that are frozen: the supervisor renews, so the term goes
// on. The kernel wakes the guardian; the command is continued here, and acts again under its token.
func (v *victim) leadsOn(a *run, begin time.Duration) []any {
	a.Helper()
	waitUntil(begin + 2*a.ttl)
	eventually(a, time.Minute, "a guardian that the kernel has woken", func() bool {
		return v.guardian.dead() || !v.guardian.frozen()
	})
	if v.guardian.dead() { // a busy store has cost the term, unless the guardian has died by itself
		spare := a.gaveUp(v)
		a.next(v)
		a.wantExit(v, 122)
		return []any{"the term was lost", "acted last before the deadline", spare}
	}
	at := boottime.Now()
	v.send(a, harm{"command", syscall.SIGCONT})
	eventually(a, time.Minute, "acts of the command that was continued", func() bool {
		if v.guardian.dead() {
			return true // the term is over; the next fault takes another leader
		}
		for _, last := range v.lastActs(a, a.own) {
			if last < at {
				return false
			}
		}
		return true
	})
	return []any{"the term goes on"}
}

// send signals the processes of a role. A command that is killed leaves its child behind.
func (v *victim) send(a *run, h harm) {
	a.Helper()
	switch h.role {
	case "supervisor":
		v.supervisor.signal(a, h.sig)
	case "guardian":
		v.guardian.signal(a, h.sig)
	default:
		for _, m := range v.members {
			if h.sig != syscall.SIGKILL || m.role == child {
				m.signal(a, h.sig)
			}
		}
	}
}

// freezeCgroup freezes the supervisor and all below it by a cgroup, which no SIGCONT thaws. With a
// namespace the kernel kills the guardian before the deadline, and the command with it. Without one
// the command may act in the moment of the thaw. That must be short; the acts are counted, and left
// out of the check for two leaders. They alone are.
func freezeCgroup(a *run, v *victim) []any {
	pids := []int{v.supervisor.pid, v.guardian.pid}
	for _, m := range v.members {
		pids = append(pids, m.pid)
	}
	if !v.stands() {
		return missed
	}
	group := servertest.NewCgroup(a, pids...)
	if !v.aim(a, a.rng.Float64(), a.renewEvery()) {
		return missed
	}
	begin := boottime.Now()
	group.Freeze()
	bound := v.bound(a, a.ttl)
	if a.isolated {
		spare := a.deadBy(v, bound)
		a.next(v)
		group.Thaw()
		a.wantExit(v, exitLost)
		return []any{"acted last before the deadline", spare}
	}
	a.next(v)
	waitUntil(begin + 2*a.ttl)
	a.acts.poll(a)
	before := v.countActs(a, a.own)
	stall := safety.WatchStalls(time.Millisecond)
	thaw := boottime.Now()
	a.thaws = append(a.thaws, late{token: v.token, thaw: thaw, index: len(a.acts.acts)})
	group.Thaw()
	for _, m := range v.members {
		eventually(a, time.Minute, m.String()+" to be gone after the thaw", m.dead)
	}
	gone := boottime.Now() - thaw
	_, slack := stall()
	var last time.Duration                                     // act after the thaw
	soon := briefly(500*time.Millisecond, 50*time.Millisecond) // beside all other tests the guardian, too, waits
	for m, at := range v.lastActs(a, a.own) {
		last = max(last, at-thaw)
		// What the machine itself held up (our own thread, which slept for a millisecond at a time)
		// is not the guardian's: that has to get the processor several times.
		if at-thaw > soon+slack {
			a.Errorf("%v acted %v after the thaw, want at most %v (and this machine stood still for %v)", m,
				at-thaw, soon, slack)
		}
	}
	a.wantExit(v, exitLost)
	return []any{"late acts", v.countActs(a, a.own) - before, "acted last after the thaw", last, "seen dead", gone,
		"machine stalled", slack}
}

// outside returns the process ID, as seen here, of a process of a term that is isolated: the one
// that has this number in its namespace, and the term's token in its environment. 0: there is none.
func outside(number int, token uint64) int {
	found, _ := filepath.Glob("/proc/[0-9]*/status")
	for _, path := range found {
		status, _ := os.ReadFile(path)
		_, rest, _ := strings.Cut(string(status), "NSpid:")
		line, _, _ := strings.Cut(rest, "\n")
		f := strings.Fields(line)
		if len(f) < 2 || f[len(f)-1] != strconv.Itoa(number) {
			continue
		}
		env, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "environ"))
		if strings.Contains("\x00"+string(env), fmt.Sprintf("\x00PRIMACY_TOKEN=%d\x00", token)) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			return pid
		}
	}
	return 0
}
