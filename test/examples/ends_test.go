//go:build linux

package examples

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
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
for i in {1..24}; do echo "works $EPOCHREALTIME"; sleep 0.05; done
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
			onlyOneWorks(t, env, name, first, second)
		})
	}
}

// began returns when the term with that token began, as the history has it, in seconds. A process
// that reads "leads" from the next one knows later.
func began(t *testing.T, env []string, name, token string) float64 {
	t.Helper()
	bin, err := programtest.Program()
	if err != nil {
		t.Fatal(err)
	}
	_, dir, _ := strings.Cut(env[0], "=")
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		text, err := exec.Command(bin, "history", "--store", "embedded:"+filepath.Join(dir, "store"), "-o", "json",
			name).Output()
		var terms []struct {
			Token json.Number
			From  time.Time
		}
		if err != nil || json.Unmarshal(text, &terms) != nil {
			continue
		}
		for _, term := range terms {
			if term.Token.String() == token && !term.From.IsZero() {
				return float64(term.From.UnixMicro()) / 1e6
			}
		}
	}
	t.Fatalf("the history does not have token %s of %s", token, name)
	return 0
}

// onlyOneWorks fails if a process, which says when it works, goes on to work though the next leads.
func onlyOneWorks(t *testing.T, env []string, name string, before, next *process) {
	t.Helper()
	leads := began(t, env, name, strings.TrimPrefix(next.says("leads "), "leads "))
	time.Sleep(600 * time.Millisecond) // what it has printed may be on its way
	worked, beside := 0, 0
	for _, line := range strings.Split(before.text(), "\n") {
		text, ok := strings.CutPrefix(line, "works ")
		if !ok {
			continue
		}
		at, err := strconv.ParseFloat(strings.Replace(text, ",", ".", 1), 64) // as the locale has it
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if worked++; at > leads {
			beside++
		}
	}
	if beside > 0 || worked == 0 {
		t.Errorf("it worked %d times beside the next leader:\n%s", beside, before.text())
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
        print("works", time.time(), flush=True)
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
	onlyOneWorks(t, env, "forks", first, second)
	first.ends(0)
}
