package filereg

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// roles are what this test binary does when it is started again with FILEREG_ROLE.
var roles = map[string]func(r *Register, arg string) error{
	"count": childCounts,
	"die":   childDies,
	"hold":  childHolds,
}

func TestMain(m *testing.M) {
	role := roles[os.Getenv("FILEREG_ROLE")]
	if role == nil {
		os.Exit(m.Run())
	}
	r, err := New(os.Getenv("FILEREG_DIR"))
	if err == nil {
		err = role(r, os.Getenv("FILEREG_ARG"))
	}
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

// child is another process over the same directory. What it prints arrives in lines, which is closed when it has ended.
type child struct {
	cmd   *exec.Cmd
	lines chan string
}

func start(t *testing.T, dir, role, arg string) *child {
	t.Helper()
	c := &child{exec.Command(os.Args[0]), make(chan string, 10_000)}
	c.cmd.Env = append(os.Environ(), "FILEREG_ROLE="+role, "FILEREG_DIR="+dir, "FILEREG_ARG="+arg)
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.cmd.Stderr = os.Stderr
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.kill)
	go func() {
		defer close(c.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			c.lines <- s.Text()
		}
		_ = c.cmd.Wait()
	}()
	return c
}

func (c *child) kill() { _ = c.cmd.Process.Kill() }

// number is a value that shows when a part of it is missing: larger than a page of the disk, with a sum of it all.
func number(n int) []byte {
	body := strings.Repeat(fmt.Sprintf("%d\n", n), 3000)
	return fmt.Appendf(nil, "%s%x", body, sha256.Sum256([]byte(body)))
}

func numberOf(value []byte) (int, error) {
	if len(value) == 0 {
		return 0, nil
	}
	first, _, _ := strings.Cut(string(value), "\n")
	n, err := strconv.Atoi(first)
	if err != nil || string(number(n)) != string(value) {
		return 0, fmt.Errorf("a torn value of %d bytes", len(value))
	}
	return n, nil
}

// countUp adds one to the number under "count".
func countUp(ctx context.Context, r *Register) error {
	for {
		value, version, err := r.Get(ctx, "count")
		if err != nil {
			return err
		}
		n, err := numberOf(value)
		if err != nil {
			return err
		}
		if _, ok, err := r.Put(ctx, "count", number(n+1), version); err != nil || ok {
			return err
		}
	}
}

func childCounts(r *Register, times string) error {
	n, err := strconv.Atoi(times)
	for i := 0; i < n && err == nil; i++ {
		if err = countUp(context.Background(), r); err == nil {
			fmt.Println("done")
		}
	}
	return err
}

// Four processes count, three more are killed somewhere in the middle: nothing that was acknowledged is lost, nothing is torn, and each of the dead may have
// done one that it did not live to tell.
func TestProcessesCountUpWhileSomeAreKilled(t *testing.T) {
	t.Parallel()
	const each, survivors, victims = 50, 4, 3
	dir := t.TempDir()
	acknowledged := make(chan int)
	follow := func(c *child, mortal int) {
		n := 0
		for line := range c.lines {
			if line != "done" {
				t.Error(line)
				break
			}
			if n++; n == mortal {
				c.kill()
			}
		}
		if mortal == 0 && n != each {
			t.Errorf("a process counted %d times, want %d", n, each)
		}
		acknowledged <- n
	}
	for range survivors {
		go follow(start(t, dir, "count", strconv.Itoa(each)), 0)
	}
	for i := range victims {
		go follow(start(t, dir, "count", "1000000"), 5+5*i)
	}
	sum := 0
	for range survivors + victims {
		sum += <-acknowledged
	}
	value, _, err := open(t, dir).Get(t.Context(), "count")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := numberOf(value); err != nil || n < sum || n > sum+victims {
		t.Fatalf("counted %d, %v; acknowledged were %d, and %d died", n, err, sum, victims)
	}
}

// childDies counts up once and is killed at a step of it.
func childDies(r *Register, step string) error {
	r.disk.at = func(s string) {
		if s == step {
			me, _ := os.FindProcess(os.Getpid())
			_ = me.Kill()
			select {}
		}
	}
	_ = countUp(context.Background(), r)
	return errors.New("alive")
}

func TestADeathAtEachStepLeavesTheOldValueOrTheNewOne(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		step string
		want int // from 1
	}{{"locked", 1}, {"half", 1}, {"written", 1}, {"synced", 1}, {"renamed", 2}, {"lasting", 2}} {
		t.Run(c.step, func(t *testing.T) {
			t.Parallel()
			ctx, dir := t.Context(), t.TempDir()
			r := open(t, dir)
			if err := countUp(ctx, r); err != nil {
				t.Fatal(err)
			}
			for line := range start(t, dir, "die", c.step).lines {
				t.Fatal(line)
			}
			value, _, err := r.Get(ctx, "count")
			if n, torn := numberOf(value); err != nil || torn != nil || n != c.want {
				t.Fatalf("%d, %v, %v; want %d", n, torn, err, c.want)
			}
			path := filepath.Join(r.folder("count"), "=count")
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != lasting {
				t.Fatalf("after a read the file is not known to be on the disk: %v, %v", info, err)
			}
			if keys, err := r.List(ctx, ""); err != nil || len(keys) != 1 {
				t.Fatalf("List = %q, %v", keys, err)
			}
			if err := countUp(ctx, r); err != nil {
				t.Fatal(err)
			}
			if left, _ := filepath.Glob(filepath.Join(dir, "*", unfinished)); len(left) != 0 {
				t.Fatalf("left behind: %q", left)
			}
		})
	}
}

// childHolds keeps the lock of a key's folder until it is killed.
func childHolds(r *Register, key string) error {
	if _, err := r.disk.lock(r.folder(key)); err != nil {
		return err
	}
	fmt.Println("held")
	select {}
}

func TestTheLockOfADeadProcessHindersNobody(t *testing.T) {
	t.Parallel()
	ctx, dir := t.Context(), t.TempDir()
	r := open(t, dir)
	c := start(t, dir, "hold", "k")
	if line := <-c.lines; line != "held" {
		t.Fatal(line)
	}
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if _, _, err := r.Put(short, "k", []byte("given up"), ""); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("behind a lock that is held: %v", err)
	}
	if _, version, err := r.Get(ctx, "k"); err != nil || version != "" {
		t.Fatalf("a reader behind the lock: %q, %v", version, err)
	}
	c.kill()
	if _, ok, err := r.Put(ctx, "k", []byte("v"), ""); err != nil || !ok {
		t.Fatalf("after the death of who had the lock, and a Put that was given up: %v, %v", ok, err)
	}
}
