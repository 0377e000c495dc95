package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// The program: a part of `primacy run` is killed while the rest of it lives, which knows that
// nothing of the leader is left and gives its claim up without waiting for the lease. Row 9.

const programRounds = 4

func programBenches() []*Bench {
	return []*Bench{{Name: "primacy run is killed", Solo: true, Run: killProgram, Reps: 3, Lines: []Line{
		{Row: 9, Key: "supervisor", What: "primacy run, TTL 10 s: supervisor killed, guardian lives → next leads", Unit: Seconds, Goal: Goal{Most: 0.020}},
		{Row: 9, Key: "command", What: "primacy run, TTL 10 s: command killed, supervisor lives → next leads", Unit: Seconds, Goal: Goal{Most: 0.020}}}}}
}

// build compiles the program, once for each run.
func (e *Env) build() (string, error) {
	out := filepath.Join(e.box.dir, "primacy")
	if _, err := os.Stat(out); err == nil {
		return out, nil
	}
	dir, err := os.Getwd()
	for ; err == nil; dir = filepath.Dir(dir) {
		if _, found := os.Stat(filepath.Join(dir, "cmd", "primacy")); found == nil {
			break
		}
		if dir == filepath.Dir(dir) {
			err = errors.New("cmd/primacy is not above this folder: run it in the repository")
		}
	}
	if err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-o", out, "./primacy")
	cmd.Dir = filepath.Join(dir, "cmd")
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the program: %w\n%s", err, text)
	}
	return out, nil
}

func killProgram(ctx context.Context, e *Env, c *Contender) (Sample, error) {
	program, err := e.build()
	if err != nil {
		return nil, err
	}
	t, err := e.team(ctx, c, 1, 1, lease)
	if err != nil {
		return nil, err
	}
	defer t.close()
	took := map[string][]float64{}
	for range programRounds {
		for _, victim := range []string{"supervisor", "command"} {
			d, err := killOnce(ctx, e, program, t.sessions[0], victim == "command")
			if err != nil {
				return nil, fmt.Errorf("%s killed: %w", victim, err)
			}
			took[victim] = append(took[victim], d.Seconds())
		}
	}
	return Sample{"supervisor": times(took["supervisor"]), "command": times(took["command"])}, nil
}

// killOnce has the program lead and run a command, kills one of the two, and returns how long it
// took until next led.
func killOnce(ctx context.Context, e *Env, program string, next Session, command bool) (time.Duration, error) {
	name := e.Name("program")
	var hosts []string
	for _, m := range e.Cluster.Members {
		hosts = append(hosts, m.Addr())
	}
	cmd := exec.Command(program, "run", "-q", "-S", "etcd://"+strings.Join(hosts, ","), "--ttl", lease.String(), name, "--", "sh", "-c", "echo $$; exec sleep 1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return 0, fmt.Errorf("the command does not run: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		return 0, err
	}
	if !command {
		pid = cmd.Process.Pid
	}
	return killAndWin(ctx, next, name, pid)
}

func killAndWin(ctx context.Context, next Session, name string, pid int) (time.Duration, error) {
	type win struct {
		h   Held
		at  time.Time
		err error
	}
	won := make(chan win, 1)
	go func() {
		h, err := next.Campaign(ctx, name)
		won <- win{h, time.Now(), err}
	}()
	if err := sleep(ctx, 300*time.Millisecond); err != nil {
		return 0, err
	}
	begin := time.Now()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return 0, err
	}
	w := <-won
	if w.err != nil {
		return 0, w.err
	}
	if w.at.Before(begin) {
		return 0, errors.New("two led")
	}
	return w.at.Sub(begin), w.h.Release(ctx)
}
