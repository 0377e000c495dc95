//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// spare is how long a run may take beyond its faults: to build, to start a cluster, to settle and
// to judge.
const spare = 15 * time.Minute

// torture runs the harness for one kind. A peer's run may fail, that is what it is for, but it must
// have a result; ours must pass.
func torture(ctx context.Context, o options, kind, worker string) (result, error) {
	r := result{kind: kind}
	log, err := os.Create(filepath.Join(o.keep, kind+".log"))
	if err != nil {
		return r, err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-v", "-timeout", (o.lasting + spare).String(), "-run",
		"^TestTorture$", "./torture")
	cmd.Dir = o.cmd
	cmd.Env = environment(o, kind, worker)
	cmd.Stdout, cmd.Stderr = log, log
	// go test does not hand a signal on to the test it runs: both get it, and nobody else does.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 10 * time.Second
	failed := cmd.Run()
	text, err := os.ReadFile(log.Name())
	if err == nil {
		err = r.read(string(text))
	}
	switch {
	case err != nil:
		r.failed = fmt.Errorf("no result, see %s: %w", log.Name(), errors.Join(failed, err))
		return r, r.failed
	case failed != nil && kind == ours:
		return r, fmt.Errorf("failed, see %s: %w", log.Name(), failed)
	}
	return r, nil
}

// environment is ours without what names another workspace or another run.
func environment(o options, kind, worker string) []string {
	env := slices.DeleteFunc(os.Environ(), func(s string) bool {
		return strings.HasPrefix(s, "GOWORK=") || strings.HasPrefix(s, "TORTURE_WORKER=") ||
			strings.HasPrefix(s, "TORTURE_KIND=")
	})
	env = append(env, "TORTURE_FOR="+o.lasting.String(), fmt.Sprintf("TORTURE_SEED=%d", o.seed))
	if kind != ours {
		env = append(env, "TORTURE_WORKER="+worker, "TORTURE_KIND="+kind)
	}
	return env
}
