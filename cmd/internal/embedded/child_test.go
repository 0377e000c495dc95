//go:build unix

package embedded

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// childDir in the environment makes the test binary a process that opens the store there and obeys
// its standard input.
const childDir = "PRIMACY_EMBEDDED_TEST_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		os.Exit(runChild(dir))
	}
	os.Exit(m.Run())
}

// runChild answers each line of its input with one line.
func runChild(dir string) int {
	n, err := Open(context.Background(), dir, Options{})
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	c, err := newClient(n)
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	fmt.Println("open", n.Hosting())
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		word := strings.Fields(in.Text())
		fmt.Println(obey(n, c, word))
		if word[0] == "close" {
			return 0
		}
	}
	return 1 // the test is gone
}

func obey(n *Node, c *clientv3.Client, word []string) string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	switch word[0] {
	case "put":
		// Repeated while the host changes; a put is safe to repeat.
		for {
			r, err := c.Put(ctx, word[1], word[2])
			if err == nil {
				return fmt.Sprint(r.Header.Revision)
			}
			if ctx.Err() != nil {
				return "error " + err.Error()
			}
		}
	case "get":
		r, err := c.Get(ctx, word[1])
		if err != nil {
			return "error " + err.Error()
		}
		if len(r.Kvs) == 0 {
			return "none"
		}
		return fmt.Sprint(string(r.Kvs[0].Value), " ", r.Kvs[0].CreateRevision)
	case "lease": // of so many seconds, with a key under it
		ttl, _ := strconv.ParseInt(word[1], 10, 64)
		l, err := c.Grant(ctx, ttl)
		if err == nil {
			_, err = c.Put(ctx, word[2], "v", clientv3.WithLease(l.ID))
		}
		if err != nil {
			return "error " + err.Error()
		}
		return fmt.Sprint("granted ", l.TTL)
	case "await": // to host
		is, err := n.Changed(ctx, false)
		return fmt.Sprint(is, " ", err)
	case "hosting":
		return fmt.Sprint(n.Hosting())
	case "close":
		c.Close()
		return fmt.Sprint("closed ", n.Close())
	}
	return "what?"
}

func newClient(n *Node) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{n.Endpoint()}, DialOptions: DialOptions(),
		Logger: zap.NewNop()})
}

// child is such a process.
type child struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   *os.File
	out  *bufio.Scanner
	errs bytes.Buffer
}

func startChild(t *testing.T, dir string) *child {
	t.Helper()
	c := &child{t: t, cmd: exec.Command(os.Args[0])}
	c.cmd.Env = append(os.Environ(), childDir+"="+dir)
	c.cmd.Stderr = &c.errs
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c.cmd.Stdin, c.in = r, w
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.out = bufio.NewScanner(out)
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r.Close()
	t.Cleanup(func() {
		w.Close()
		c.cmd.Process.Signal(syscall.SIGKILL)
		c.cmd.Wait()
		if c.errs.Len() > 0 && !t.Failed() {
			t.Errorf("process %d wrote on its standard error: %s", c.cmd.Process.Pid, c.errs.String())
		}
	})
	return c
}

// line reads one answer.
func (c *child) line() string {
	c.t.Helper()
	if !c.out.Scan() {
		c.cmd.Wait()
		c.t.Fatalf("process %d ended: %v\n%s", c.cmd.Process.Pid, c.cmd.ProcessState, c.errs.String())
	}
	return c.out.Text()
}

// opened waits until it has opened the store, and says whether it hosts.
func (c *child) opened() bool {
	c.t.Helper()
	got := c.line()
	hosting, err := strconv.ParseBool(strings.TrimPrefix(got, "open "))
	if err != nil {
		c.t.Fatalf("a process that opened the store said %q", got)
	}
	return hosting
}

func (c *child) send(line string) { fmt.Fprintln(c.in, line) }

func (c *child) ask(line string) string {
	c.t.Helper()
	c.send(line)
	return c.line()
}

// put writes a key and returns the store's revision.
func (c *child) put(key, value string) int64 {
	c.t.Helper()
	got := c.ask("put " + key + " " + value)
	rev, err := strconv.ParseInt(got, 10, 64)
	if err != nil {
		c.t.Fatalf("put %s: %s", key, got)
	}
	return rev
}

// want asks and compares.
func (c *child) want(line, want string) {
	c.t.Helper()
	if got := c.ask(line); got != want {
		c.t.Fatalf("%s: got %q, want %q", line, got, want)
	}
}

// kill ends it as a crash does, and returns when the kernel has it.
func (c *child) kill() {
	c.cmd.Process.Signal(syscall.SIGKILL)
	c.cmd.Wait()
}

// stop freezes it, and returns when its last thread stands still: the signal alone still lets it
// answer a call or two.
func (c *child) stop() {
	c.t.Helper()
	c.cmd.Process.Signal(syscall.SIGSTOP)
	var ws syscall.WaitStatus
	if _, err := syscall.Wait4(c.cmd.Process.Pid, &ws, syscall.WUNTRACED, nil); err != nil || !ws.Stopped() {
		c.t.Fatalf("waiting for the stop: %v, %v", ws, err)
	}
}
