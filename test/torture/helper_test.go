//go:build linux

package torture

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
)

// The environment of an acting helper.
const (
	actsEnv   = "TORTURE_ACTS"   // the file all of them write
	ownEnv    = "TORTURE_OWN"    // a folder with a file for each of them
	roleEnv   = "TORTURE_ROLE"   // child (default) or grandchild
	setsidEnv = "TORTURE_SETSID" // not empty: the grandchild has a session of its own
	deafEnv   = "TORTURE_DEAF"   // not empty: they ignore SIGTERM
)

const (
	child      = "child"
	grandchild = "grandchild"
	actEvery   = 5 * time.Millisecond
)

// actMain is the command under `primacy run`: it acts as leader every 5 ms, without asking whether
// it may, and so does its child. What they write shows when somebody really acted.
func actMain() error {
	if os.Getenv(deafEnv) != "" {
		signal.Ignore(syscall.SIGTERM)
	}
	n, _ := strconv.ParseUint(os.Getenv("PRIMACY_TOKEN"), 10, 64)
	token := fmt.Sprint(numbered(n))
	if err := os.Setenv("PRIMACY_TOKEN", token); err != nil { // for the grandchild
		return err
	}
	role := os.Getenv(roleEnv)
	if role == "" {
		role = child
		if err := startGrandchild(); err != nil {
			return err
		}
	}
	all, err := appendTo(os.Getenv(actsEnv))
	if err != nil {
		return err
	}
	own, err := appendTo(filepath.Join(os.Getenv(ownEnv), fmt.Sprintf("%s.%s.%d", token, role, os.Getpid())))
	if err != nil {
		return err
	}
	tick := time.NewTicker(actEvery)
	for ; ; <-tick.C {
		// One write, one line: appends of several processes do not mix.
		line := fmt.Appendf(nil, "%d %s %s\n", boottime.Now(), token, os.Getenv("PRIMACY_ID"))
		if _, err := all.Write(line); err != nil {
			return err
		}
		if _, err := own.Write(line); err != nil {
			return err
		}
	}
}

func startGrandchild() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), roleEnv+"="+grandchild)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: os.Getenv(setsidEnv) != ""}
	if err := cmd.Start(); err != nil {
		return err
	}
	go cmd.Wait()
	return nil
}

func appendTo(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
}
