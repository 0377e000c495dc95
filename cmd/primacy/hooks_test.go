//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

func TestHooksRunInOrder(t *testing.T) {
	w := newWorld(t)
	p := w.start("run", "--id", "me",
		"--on-elected", `echo "$PRIMACY_EVENT $PRIMACY_NAME $PRIMACY_ROLE $PRIMACY_LEADER $PRIMACY_TOKEN" >>log
			echo to stdout; exit 7`,
		"--on-deposed", `echo "$PRIMACY_EVENT $PRIMACY_REASON $PRIMACY_TOKEN $PRIMACY_ROLE" >>log`,
		"n", "sh", "-c", `echo "command $PRIMACY_ROLE $PRIMACY_EVENT$PRIMACY_LEADER$PRIMACY_REASON $PRIMACY_TOKEN" >>log
			exit 3`).ends(3)
	p.complains("on-elected: exit status 7", "to stdout") // it goes on, and stdout is the command's
	if p.out.String() != "" {
		t.Errorf("stdout %q", p.out.String())
	}
	got := w.lines("log")
	token := got[0][strings.LastIndexByte(got[0], ' ')+1:]
	want := []string{"elected n leader me " + token, "command leader  " + token, "deposed exited " + token + " standby"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got %q, want %q", got, want)
	}
}

// What a hook finds in PRIMACY_REASON is not what a person says with --reason: an operator's verb
// in a hook takes no word of it.
func TestAHooksReasonIsNoPersons(t *testing.T) {
	w := newWorld(t)
	w.start("run", "--on-deposed", "[ $PRIMACY_REASON = exited ] && primacy pause >>log", "n", "true").ends(0)
	if got := w.read("log"); got != "nothing is paused\n" {
		t.Errorf("the pauses: %q", got)
	}
}

// What a hook leaves behind is gone with it; one that hangs is stopped, also one that is deaf.
func TestAHookThatHangsOrForks(t *testing.T) {
	w := newWorld(t)
	for limit := 700 * time.Millisecond; w.read("seen") == ""; limit *= 2 { // a busy machine's hook has not written yet
		p := w.start("run", "--hook-timeout", limit.String(),
			"--on-elected", `setsid sh -c 'trap "" TERM; while :; do echo left >>log; sleep 0.01; done' &
				trap '' TERM; sleep 1000`,
			"n", "sh", "-c", "touch log; cp log seen; sleep 0.3; cmp log seen").ends(0)
		p.complains("on-elected: stopped after --hook-timeout " + limit.String())
	}
	// One that ends at once and leaves a daemon.
	w.start("run", "--on-elected", `setsid sh -c 'while :; do echo left >>log2; sleep 0.01; done' &
		until [ -s log2 ]; do sleep 0.02; done`,
		"n", "sh", "-c", "cp log2 seen2; sleep 0.3; cmp log2 seen2").ends(0)
}

// The release does not wait for the on-deposed hook; the end of the process does, for as long as
// the hook may take.
func TestTheReleaseDoesNotWaitForAHook(t *testing.T) {
	w := newWorld(t)
	p := w.start("run", "--hook-timeout", "1h", "--on-deposed", "until [ -e go ]; do sleep 0.05; done; echo hook", "n",
		"sh", "-c", upAndSleep).prints("up")
	next := w.start("run", "n", "sh", "-c", "echo up").tells("waits for n")
	w.awaitLine("n", 2)
	p.signal(syscall.SIGTERM)
	next.ends(0).says("up")
	select {
	case <-p.exited:
		t.Error("it ended before its hook")
	default:
	}
	w.touch("go")
	p.ends(143).complains("hook")
	w.start("run", "--hook-timeout", "700ms", "--on-deposed", "exec sleep 1000", "n", "true").ends(0).
		complains("on-deposed: stopped after --hook-timeout 700ms")
}

// A hook that acts as leader is bound to the term as the command is: frozen, its supervisor leaves
// nothing that acts beside the next leader.
func TestAnElectedHookEndsWithTheTerm(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	p := w.start("run", "--ttl", "12s", "--hook-timeout", "1h", "--on-elected", "primacy worker acts & "+stubborn, "n",
		"true")
	w.eventually("the hook acts", func() bool { return len(w.periods()) == 1 })
	next := w.start("run", "--ttl", "60s", "n", "sh", "-c", stubborn).tells("waits for n")
	w.awaitLine("n", 2)
	p.signal(syscall.SIGSTOP)
	next.prints("up")
	w.eventually("the next acts", func() bool { return len(w.periods()) == 2 })
	w.wantOrder(2)
	p.ends(exitLost)
	// Removed by hand, it ends at once, and the command is not started.
	p = w.start("run", "--hook-timeout", "1h", "--on-elected",
		"trap '' TERM; echo hook >>log; while :; do sleep 0.05; done", "m", "sh", "-c", "echo command >>log")
	w.writes("log", "hook")
	w.delete("m/" + hexLease(w.awaitLine("m", 1)[0]))
	p.ends(exitLost)
	// A signal ends it too.
	p = w.start("run", "--hook-timeout", "1h", "--on-elected", "echo hook2 >>log; exec sleep 1000", "k", "sh", "-c",
		"echo command >>log")
	w.writes("log", "hook2")
	p.signal(syscall.SIGTERM).ends(143)
	w.awaitLine("k", 0)
	if got := w.read("log"); strings.Contains(got, "command") {
		t.Errorf("the command ran: %q", got)
	}
}

func TestLeaderChanges(t *testing.T) {
	w := newWorld(t)
	a := w.start("run", "--id", "a", "n", "sleep", "1000").tells("leads n")
	tokenA := w.awaitLine("n", 1)[0].CreateRevision
	p := w.start("run", "--id", "me", "--on-leader-change",
		`echo "$PRIMACY_EVENT $PRIMACY_LEADER/$PRIMACY_TOKEN $PRIMACY_ROLE" >>log`, "n", "sleep", "1000")
	w.writes("log", "leader-change a/"+tokenA+" standby\n")
	w.awaitLine("n", 2)
	a.signal(syscall.SIGTERM).ends(143)
	p.tells("leads n")
	w.writes("log", "leader-change me/"+w.awaitLine("n", 1)[0].CreateRevision+" leader\n")
	p.signal(syscall.SIGTERM).ends(143)
}

// A hook of a killed supervisor is ended by its guardian, and its term is given up.
func TestTheHookOfAKilledSupervisor(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	p := w.start("run", "--ttl", "60s", "--stop-timeout", "200ms", "--hook-timeout", "1h", "--on-elected",
		"echo up >>log; "+stubborn, "n", "true")
	w.eventually("the hook acts", func() bool { return len(w.periods()) == 1 })
	next := w.start("run", "--ttl", "60s", "n", "sh", "-c", stubborn).tells("waits for n")
	w.awaitLine("n", 2)
	p.signal(syscall.SIGKILL)
	next.prints("up")
	w.eventually("the next acts", func() bool { return len(w.periods()) == 2 })
	w.wantOrder(2)
}

func TestOnExitRestart(t *testing.T) {
	w := newWorld(t)
	p := w.start("run", "--on-exit", "restart", "n", "sh", "-c",
		"echo $PRIMACY_TOKEN; exit 6").tells("the command ended with status 6; it is started again in 1s")
	token := w.awaitLine("n", 1)[0].CreateRevision
	p.prints(token + "\n" + token + "\n") // the same term
	p.tells("again in 2s")
	at := time.Now()
	p.signal(syscall.SIGTERM).ends(143) // in the pause: at once
	if d := time.Since(at); d > 1500*time.Millisecond && !testing.Short() {
		t.Logf("it took %v", d)
	}
	w.awaitLine("n", 0)
	// Asked to end, it is not started again.
	p = w.start("run", "--on-exit", "restart", "n", "sh", "-c",
		"trap 'kill $!; exit 4' TERM; echo up; sleep 1000 & wait").prints("up")
	p.signal(syscall.SIGTERM).ends(4)
	// Lost in the pause, it is lost.
	p = w.start("run", "--on-exit", "restart", "n", "sh", "-c", "exit 6").tells("started again in 1s")
	w.revoke(w.awaitLine("n", 1)[0].Lease)
	p.ends(exitLost)
}

// stop-now does not wait for the deadline when the store falls silent.
func TestOnUnreachableStopNow(t *testing.T) {
	onlyInVerify(t)
	// How long before the deadline the command is told at most, and at least. It has a tenth of the
	// ttl to stop.
	for how, want := range map[string][2]time.Duration{"stop-now": {limit, 5 * time.Second},
		"stop-at-deadline": {2500 * time.Millisecond, -limit}} {
		t.Run(how, func(t *testing.T) {
			w := newWorld(t)
			proxy := newProxyOf(w)
			p := w.start("run", "--ttl", "20s", "--on-unreachable", how, "--store",
				"etcd://"+proxy.Addr()+"/"+w.prefix, "n", "sh", "-c",
				`trap 'touch stopped; exit' TERM; echo up; while :; do sleep 0.02; done`).prints("up")
			// From an accepted renewal on, so that the deadline is far away.
			file := filepath.Join(w.dir, "primacy", strings.TrimSpace(pidOf(p))+".state")
			was, _ := os.ReadFile(file)
			w.eventually("a renewal", func() bool { now, _ := os.ReadFile(file); return string(now) != string(was) })
			proxy.Hold()
			var deadline time.Duration // as the last answer made it
			p.until(func() bool {
				if text, err := os.ReadFile(file); err == nil {
					deadline = decode[termState](w, string(text)).Deadline
				}
				_, err := os.Stat(filepath.Join(w.dir, "stopped"))
				return err == nil
			}, "tells the command to stop")
			if d := deadline - boottime.Now(); d > want[0] || d < want[1] {
				t.Errorf("the command was told to stop %v before the deadline, want %v", d, want)
			}
			p.ends(exitLost)
			if how == stopNow {
				p.complains("a renewal failed")
			}
		})
	}
}

func TestChoices(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	for flag, want := range map[string]string{"--notify": "candidate or leader", "--on-lost": "exit or recampaign",
		"--on-exit": "resign or restart", "--on-unreachable": "stop-at-deadline or stop-now"} {
		w.start("run", flag, "x", "n", "true").ends(exitUsage).inOneLine().complains(flag + ` "x": use ` + want)
	}
	w.start("run", "--hook-timeout", "0s", "n", "true").ends(exitUsage).inOneLine().complains("use a positive duration")
	w.start("lock", "--on-unreachable", "x", "n", "true").ends(exitUsage).inOneLine()
	w.start("run", "--status", "nowhere", "n",
		"true").ends(exitUsage).inOneLine().complains("give HOST:PORT, or unix:PATH")
	w.start("run", "--events", "/proc/nosuch/x", "n",
		"true").ends(exitUsage).inOneLine().complains("--events /proc/nosuch/x: no such file or directory")
	w.start("run", "--events", "fd:77", "n", "true").ends(exitUsage).inOneLine().complains("descriptor 77 is not open")
	w.start("run", "--events", "fd:1", "n", "true").ends(exitUsage).inOneLine().complains("2 or more")
}

func newProxyOf(w *world) *etcdtest.Proxy { return etcdtest.NewProxy(w, w.server.Addr()) }

func pidOf(p *prog) string { return strconv.Itoa(p.cmd.Process.Pid) }

// A signal while the on-deposed hook of a lost term runs is the end: nobody stands again after it,
// and the exit code is that of the loss.
func TestASignalWhileTheHookOfALostTermRuns(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	p := w.start("run", "--events", "log", "--on-lost", "recampaign", "--hook-timeout", "10s",
		"--on-deposed", "echo hook >>hooked; exec sleep 1000", "n", "sh", "-c", "echo up; exec sleep 1000").prints("up")
	w.revoke(w.awaitLine("n", 1)[0].Lease)
	w.writes("hooked", "hook")
	p.signal(syscall.SIGTERM).ends(exitLost)
	want := "candidate elected started stopping killed exited deposed released hook finished"
	if got := strings.Join(words(w.events("log")), " "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
