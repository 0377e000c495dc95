//go:build linux

package supervise

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
	"golang.org/x/sys/unix"
)

// An order to start may lie in the socket while the machine stands still, or while the guardian is
// frozen. If the guardian reads it after the deadline, or when the command would have to be stopped
// at once, it starts nothing and says why.
func TestAnOrderThatArrivesTooLateStartsNothing(t *testing.T) {
	for _, c := range []struct {
		name                string
		left, grace, margin time.Duration // left: until the deadline, when the guardian reads the order
		starts              bool
	}{
		{"after the deadline", -time.Second, 0, 0, false},
		{"when it must be killed", time.Minute, 0, 2 * time.Minute, false},
		{"when it must be stopped", time.Minute, 2 * time.Minute, 0, false},
		{"in time", time.Minute, time.Second, time.Second, true}, // or the other cases show nothing
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "started")
			start := &startOrder{
				Path: "/bin/sh", Args: []rawString{"sh", "-c", rawString(`echo yes > "` + file + `"`)},
				Env: convert[rawString](os.Environ()), Dir: "/",
				Deadline: boottime.Now() + c.left, Grace: c.grace, Margin: c.margin,
				StopSignal: unix.SIGTERM, Group: unix.Getpgrp(), SupervisorPID: os.Getpid(),
			}
			reports := reportsOfGuardian(t, order{Start: start})
			_, err := os.Stat(file)
			switch first := reports[0]; {
			case c.starts && (first.Started == 0 || err != nil):
				t.Errorf("first report = %+v, file: %v, want the command started", first, err)
			case !c.starts && (first.Failed == nil || !first.Failed.TooLate):
				t.Errorf("first report = %+v, want that it is too late", first)
			case !c.starts && err == nil:
				t.Error("the command ran")
			}
		})
	}
}

// reportsOfGuardian runs a guardian, sends it one order, and returns what it reports until its end.
func reportsOfGuardian(t *testing.T, o order) (reports []report) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, its := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "the guardian's")
	defer ours.Close()
	guardian := exec.Command(self(), GuardianArg)
	guardian.Stderr, guardian.ExtraFiles = os.Stderr, []*os.File{its}
	err = guardian.Start()
	its.Close()
	if err != nil {
		t.Fatal(err)
	}
	if err := json.NewEncoder(ours).Encode(o); err != nil {
		t.Error(err)
	}
	for lines := bufio.NewScanner(ours); lines.Scan(); {
		var r report
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Errorf("%v in %q", err, lines.Text())
		}
		reports = append(reports, r)
	}
	if err := guardian.Wait(); err != nil || len(reports) == 0 {
		t.Fatalf("the guardian reported %+v and ended with %v, want a report and no error", reports, err)
	}
	return reports
}
