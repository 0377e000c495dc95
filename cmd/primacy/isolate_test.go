//go:build linux

package main

import (
	"os"
	"strings"
	"syscall"
	"testing"
)

// needIsolation ends a test on a machine whose kernel lets this process make no PID namespace.
func needIsolation(w *world) {
	w.Helper()
	p := w.start("lock", "--isolate", "pid", "isolation", "true")
	if code := p.wait(); code == exitUsage && strings.Contains(p.err.String(), "no PID namespace") {
		w.Skip(p.err.String())
	} else if code != 0 {
		w.Fatalf("exit %d: %s", code, p.err.String())
	}
}

// Supervisor and guardian are killed at one instant. With --isolate pid nothing of the command is
// left, also not what has escaped into a session of its own.
func TestIsolatedBothKilled(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	needIsolation(w)
	first := w.candidate("first", "--ttl", "10s", "--isolate", "pid")
	w.eventually("it acts", func() bool { return len(w.periods()) == 1 })
	guardian := first.guardian()
	for _, pid := range []int{first.cmd.Process.Pid, guardian} {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	for _, pid := range []int{guardian, first.cmd.Process.Pid} {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	first.ends(128 + int(syscall.SIGKILL))
	w.eventually("no process of it is left", func() bool { return len(w.processes()) == 0 })
	w.candidate("second", "--ttl", "10s", "--isolate", "pid")
	w.eventually("the next acts", func() bool { return len(w.periods()) == 2 })
	w.wantOrder(2)
}

func TestIsolate(t *testing.T) {
	w := newWorld(t)
	for _, verb := range []string{"run", "lock"} {
		w.start(verb, "--isolate", "net", "n", "true").ends(exitUsage).inOneLine().complains(`--isolate "net": use pid`)
	}
	w.start("cron", "--isolate", "net", "n", "@daily", "--", "true").ends(exitUsage).inOneLine().complains("use pid")
	needIsolation(w)
	w.start("run", "-q", "--isolate", "pid", "--on-elected", "echo hook $PRIMACY_NAME", "n", "sh", "-c",
		"ps -e | wc -l; echo $PRIMACY_TOKEN; exit 7").ends(7).complains("hook n\n")
	w.start("run", "-q", "--isolate", "pid", "n", "/etc/passwd").ends(126)
	// A guardian in the namespace counts the processes that it sees there.
	w.start("run", "-q", "--isolate", "pid", "n", "primacy", "lock", "-q", "m", "sh", "-c",
		"setsid sleep 1000 & echo inside").ends(0).says("inside")
	if left := w.processes(); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
}

// Where no namespace can be made, --isolate says so and nothing runs.
func TestIsolateIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can forbid namespaces here")
	}
	w := newWorld(t)
	p := w.startSh(nil, `unshare --user --map-root-user sh -c '
		echo 0 >/proc/sys/user/max_user_namespaces
		exec setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin primacy run --isolate pid n sh -c "echo it ran"'`)
	p.ends(exitUsage).inOneLine()
	p.complains("--isolate pid: ", "cannot be isolated: no PID namespace: it needs CAP_SYS_ADMIN")
	if p.out.String() != "" {
		t.Errorf("it printed %q", p.out.String())
	}
}
