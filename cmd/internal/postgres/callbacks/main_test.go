//go:build linux

package callbacks

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/postgres/agent"
)

// limit bounds what must happen soon. Generous: the machine may be busy, and nobody waits for it
// when all is well.
const limit = time.Minute

// memberArg makes the test binary a member that ends at once.
const memberArg = "__member"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case KeeperArg:
			KeeperMain()
		case memberArg:
			memberMain(os.Args[2])
		}
	}
	os.Exit(m.Run())
}

// memberMain has a server, and ends with it.
func memberMain(script string) {
	m := &shown{}
	m.show(agent.Snapshot{PID: 1, Up: true})
	up := make(chan struct{})
	log := slog.New(watched(func(line string) {
		if line == "up" {
			close(up)
		}
	}))
	c := New(Config{Cluster: "orders", Log: log, Start: (*exec.Cmd).Start,
		Commands: map[Action][]string{OnStart: shell("echo up"), OnStop: shell(script)}})
	c.Follow(m)
	<-up
	m.show(agent.Snapshot{})
	c.End()
	os.Exit(0)
}

// shown is a member.
type shown struct{ atomic.Pointer[agent.Snapshot] }

func (m *shown) Snapshot() *agent.Snapshot { return m.Load() }

func (m *shown) show(s agent.Snapshot) {
	s.LoopWait = time.Millisecond
	m.Store(&s)
}

// shell is a command; its arguments are $@.
func shell(script string) []string { return []string{"/bin/sh", "-c", script, "sh"} }

// watched is a log that gives away what commands say, and all else with its error.
type watched func(line string)

func (w watched) Enabled(context.Context, slog.Level) bool { return true }
func (w watched) WithAttrs([]slog.Attr) slog.Handler       { return w }
func (w watched) WithGroup(string) slog.Handler            { return w }
func (w watched) Handle(_ context.Context, r slog.Record) error {
	line := r.Message
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "line":
			line = a.Value.String()
		case "err":
			line += ": " + a.Value.String()
		}
		return true
	})
	w(line)
	return nil
}

// bench is a line of commands, and what is logged.
type bench struct {
	*testing.T
	*line
	logged chan string
}

func newBench(t *testing.T, start func(*exec.Cmd) error) *bench {
	return &bench{t, newLine(Config{Start: start}), make(chan string, 10*mostLines)}
}

func (b *bench) do(script string, args ...string) {
	b.call(append(shell(script), args...), slog.New(watched(func(line string) { b.logged <- line })))
}

// hears waits for a line that begins so, and returns what comes after that.
func (b *bench) hears(want string) string {
	b.Helper()
	end := time.After(limit)
	for {
		select {
		case line := <-b.logged:
			if rest, ok := strings.CutPrefix(line, want); ok {
				return strings.TrimSpace(rest)
			}
			b.Logf("logged: %s", line)
		case <-end:
			b.Fatalf("%q was not logged", want)
		}
	}
}
