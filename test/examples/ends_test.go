//go:build linux

package examples

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/programtest"
)

// overlong is a step that hears no signal and prints for more than a second.
const overlong = `#!/bin/bash
trap '' TERM INT HUP
echo begins
for i in {1..24}; do echo "works $PRIMACY_TOKEN"; sleep 0.05; done
`

// Whatever ends the shell, or all of its process group or service, nobody else leads while its step
// works.
func TestTheStepOfAShellThatIsEndedWorksAlone(t *testing.T) {
	programtest.Needs(t, "bash", "curl", "setsid")
	t.Parallel()
	_, env := sidecar(t)
	step := filepath.Join(t.TempDir(), "step")
	if err := os.WriteFile(step, []byte(overlong), 0o700); err != nil {
		t.Fatal(err)
	}
	for how, signal := range map[string]func(pid int) error{
		"killed":     func(pid int) error { return syscall.Kill(pid, syscall.SIGKILL) },
		"terminated": func(pid int) error { return syscall.Kill(-pid, syscall.SIGTERM) },
		"interrupt":  func(pid int) error { return syscall.Kill(-pid, syscall.SIGINT) },
		"hung up":    func(pid int) error { return syscall.Kill(-pid, syscall.SIGHUP) },
	} {
		t.Run(how, func(t *testing.T) {
			name := "ends-" + strings.ReplaceAll(how, " ", "-")
			first := start(t, t, env, "setsid", "bash", "../../examples/shell/lead.sh", name, step)
			first.says("begins")
			second := start(t, t, env, languages["shell"](name)...)
			time.Sleep(200 * time.Millisecond)
			if err := signal(first.cmd.Process.Pid); err != nil {
				t.Fatal(err)
			}
			second.says("leads ")
			onlyOneWorks(t, first)
		})
	}
}

// onlyOneWorks fails if a process goes on to work, though another leads.
func onlyOneWorks(t *testing.T, before *process) {
	t.Helper()
	time.Sleep(150 * time.Millisecond) // what it printed before that may be on its way
	worked := strings.Count(before.text(), "works")
	time.Sleep(400 * time.Millisecond)
	if more := strings.Count(before.text(), "works") - worked; more > 0 {
		t.Errorf("it worked %d times beside the next leader:\n%s", more, before.text())
	}
}

// forks is a program whose child leaves the block that both are in, while its parent works on. It
// waits for the child's end.
const forks = `
import os, sys, time
sys.path.insert(0, "../../examples/python")
from election import election
with election("forks") as term:
    child = os.fork()
    if child == 0:
        sys.exit(0)
    for _ in range(24):
        term.check()
        print("works", flush=True)
        time.sleep(0.05)
    os.waitpid(child, 0)
`

// A child that a leading process forked does not resign for it.
func TestAForkedChildOfPythonDoesNotResign(t *testing.T) {
	programtest.Needs(t, "python3", "curl")
	t.Parallel()
	_, env := sidecar(t)
	first := start(t, t, env, "python3", "-B", "-c", forks)
	first.says("works")
	second := start(t, t, env, languages["shell"]("forks")...)
	second.says("leads ")
	onlyOneWorks(t, first)
	first.ends(0)
}
