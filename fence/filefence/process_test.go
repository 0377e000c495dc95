//go:build unix

package filefence_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/fence"
	"github.com/primacy-go/primacy/fence/filefence"
)

// The environment of a process that only writes.
const (
	writePathEnv  = "FILEFENCE_TEST_PATH"
	writeTokenEnv = "FILEFENCE_TEST_TOKEN"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(writePathEnv); path != "" {
		token, _ := strconv.Atoi(os.Getenv(writeTokenEnv))
		fmt.Println("writing")
		for {
			err := filefence.Write(context.Background(), path, []byte(version(token, os.Getpid()%10)), 0o600, stamp(primacy.Token(token)))
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(3)
			}
		}
	}
	os.Exit(m.Run())
}

// writer starts a process that writes path under token until it is killed or refused.
func writer(t *testing.T, path string, token int) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), writePathEnv+"="+path, writeTokenEnv+"="+strconv.Itoa(token))
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func lockByHand(t *testing.T, path string) (free func()) {
	t.Helper()
	f, err := os.Open(path)
	if err == nil {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() { f.Close() }
}

// A writer that is killed at any moment leaves a whole version, and no lock.
func TestKilledWritersLeaveAWholeFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	put(t, path, version(1, 0), 1)
	for round := 2; round < 22; round++ {
		w := writer(t, path, round)
		time.Sleep(time.Duration(rand.IntN(15)) * time.Millisecond) // any moment of a write
		w.Process.Kill()
		w.Wait()
		if token, ok := whole([]byte(content(t, path))); !ok || token > round || token < round-1 {
			t.Fatalf("round %d: the file is of token %d, whole: %v", round, token, ok)
		}
		put(t, path, version(round, 1), primacy.Token(round))
	}
}

// Two processes at once: from the moment the newer has written, the older can no more.
func TestTwoProcesses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	old := writer(t, path, 7)
	newer := writer(t, path, 9)
	if err := old.Wait(); err == nil || old.ProcessState.ExitCode() != 3 {
		t.Errorf("the old writer ended with %v, want it refused", err)
	}
	if token, ok := whole([]byte(content(t, path))); token != 9 || !ok {
		t.Errorf("the file is of token %d, whole: %v", token, ok)
	}
	newer.Process.Kill()
	newer.Wait()
	put(t, path, version(10, 0), 10)
}

// A process that is stopped inside Write holds its successor up, who says so, until it is killed.
func TestAStoppedWriter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	old := writer(t, path, 7)
	ctx := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	for try := 0; ; try++ { // until it was stopped while it held the lock
		if err := old.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
		if err := filefence.Raise(ctx(), path, stamp(7)); err != nil {
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("Raise beside a stopped writer = %v", err)
			}
			break
		}
		if try == 50 {
			t.Fatal("the writer was never stopped inside Write")
		}
		_ = old.Process.Signal(syscall.SIGCONT)
		time.Sleep(time.Duration(rand.IntN(5)) * time.Millisecond)
	}
	old.Process.Kill()
	if err := filefence.Raise(t.Context(), path, stamp(9)); err != nil {
		t.Fatal(err)
	}
	if err := filefence.Write(t.Context(), path, nil, 0o600, stamp(7)); !errors.Is(err, fence.ErrStale) {
		t.Errorf("the old token after that = %v, want ErrStale", err)
	}
}
