//go:build linux

package fencetest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/etcdstore"
	"github.com/primacy-go/primacy/fence"
	"github.com/primacy-go/primacy/internal/onethread"
	"github.com/primacy-go/primacy/internal/servertest"
)

// placesEnv says that this binary runs as a leader, and where the resources are.
const placesEnv = "FENCETEST_PLACES"

const ttl = 8 * time.Second // on a busy machine it must not end while a leader raises its fences

func TestMain(m *testing.M) {
	text := os.Getenv(placesEnv)
	if text == "" {
		os.Exit(m.Run())
	}
	if err := leaderMain(text); err != nil {
		fmt.Fprintln(os.Stderr, "leader:", err)
		os.Exit(99)
	}
}

// outcome is what a leader tells of one write.
type outcome struct {
	Resource       string
	Err            string // of the write behind the fence; empty: it landed
	Stale          bool   // errors.Is(err, fence.ErrStale)
	Token, Largest primacy.Token
	Control        string // error of the control; empty: it landed
}

// leaderMain leads once: campaigns, raises every fence, asks Check, tells so, and writes when it is
// told to, without asking again: that is the pause between Check and write. It writes lines:
//
//	checked TOKEN
//	wrote [OUTCOMES]
func leaderMain(text string) error {
	var p places
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute) // also while it is stopped
	defer cancel()
	store, err := etcdstore.Open(ctx, etcdstore.Config{Endpoints: []string{p.Etcd}})
	if err != nil {
		return err
	}
	session, err := primacy.NewSession(store, &primacy.Options{TTL: ttl, Overrun: primacy.OverrunWait})
	if err != nil {
		return err
	}
	term, err := session.Election(election).Campaign(ctx, nil)
	if err != nil {
		return err
	}
	all, err := dialAll(p, term, store)
	if err != nil {
		return err
	}
	for _, r := range all {
		if err := r.raise(ctx); err != nil {
			return fmt.Errorf("%s: raise: %w", r.name, err)
		}
	}
	if err := term.Check(); err != nil {
		return err
	}
	fmt.Println("checked", term.Token())
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	answer, err := json.Marshal(writeAll(ctx, all, term.Token().String()))
	if err != nil {
		return err
	}
	fmt.Printf("wrote %s\n", answer)
	_, _ = io.Copy(io.Discard, os.Stdin) // lead on until the test is done
	return nil
}

func writeAll(ctx context.Context, all []resource, value string) []outcome {
	var told []outcome
	for _, r := range all {
		o := outcome{Resource: r.name}
		if err := r.write(ctx, value); err != nil {
			o.Err, o.Stale = err.Error(), errors.Is(err, fence.ErrStale)
			var stale *fence.StaleError
			if errors.As(err, &stale) {
				o.Token, o.Largest = stale.Token, stale.Largest
			}
		}
		if err := r.plain(ctx, value); err != nil {
			o.Control = err.Error()
		}
		told = append(told, o)
	}
	return told
}

// leader is a process that leads once.
type leader struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
}

func startLeader(t *testing.T, p places) *leader {
	t.Helper()
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	l := &leader{cmd: exec.Command(os.Args[0]), lines: make(chan string, 10)}
	l.cmd.Env = append(os.Environ(), placesEnv+"="+string(text))
	l.cmd.Stderr = os.Stderr
	l.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err1 := l.cmd.StdoutPipe()
	in, err2 := l.cmd.StdinPipe()
	err = errors.Join(err1, err2)
	l.in = in
	onethread.Do(func() {
		if err == nil {
			err = l.cmd.Start()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(l.lines)
		for sc := bufio.NewScanner(out); sc.Scan(); {
			l.lines <- sc.Text()
		}
	}()
	t.Cleanup(func() { l.cmd.Process.Kill(); <-read; l.cmd.Wait() })
	return l
}

// line returns the rest of the next line, which must begin with word.
func (l *leader) line(t *testing.T, word string) string {
	t.Helper()
	select {
	case line := <-l.lines:
		rest, ok := strings.CutPrefix(line, word+" ")
		if !ok {
			t.Fatalf("the leader said %q instead of %q", line, word)
		}
		return rest
	case <-time.After(2 * time.Minute):
		t.Fatalf("the leader did not say %q in 2 minutes", word)
		return ""
	}
}

// checked waits until the leader has asked Check, and returns its token.
func (l *leader) checked(t *testing.T) (token primacy.Token) {
	t.Helper()
	if err := token.UnmarshalText([]byte(l.line(t, "checked"))); err != nil {
		t.Fatal(err)
	}
	return token
}

// write tells the leader to write. It does so when it runs.
func (l *leader) write(t *testing.T) {
	t.Helper()
	if _, err := io.WriteString(l.in, "write\n"); err != nil {
		t.Fatal(err)
	}
}

func (l *leader) wrote(t *testing.T) []outcome {
	t.Helper()
	var told []outcome
	if err := json.Unmarshal([]byte(l.line(t, "wrote")), &told); err != nil {
		t.Fatal(err)
	}
	return told
}

func (l *leader) stop(t *testing.T) {
	t.Helper()
	if err := servertest.Halt(l.cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
}

func (l *leader) thaw(t *testing.T) {
	t.Helper()
	if err := l.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}
