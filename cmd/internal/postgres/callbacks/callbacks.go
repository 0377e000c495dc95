package callbacks

import (
	"context"
	"log/slog"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/postgres/agent"
)

// Config says what is called.
type Config struct {
	Commands map[Action][]string // each with its arguments; those of Patroni come after them
	Primary  string              // what the role of a primary is called; empty: primary
	Cluster  string
	Env      []string // the environment of all commands
	Log      *slog.Logger
	// Start starts a process that is no part of a server.
	Start func(*exec.Cmd) error
}

// Placed says whether a program is found from wherever an agent runs: by its path, or in PATH.
func Placed(program string) bool {
	return filepath.IsAbs(program) || program != "" && !strings.Contains(program, "/")
}

// Member is what is observed. *agent.Agent is one.
type Member interface {
	Snapshot() *agent.Snapshot // nil: it has not begun
}

// Callbacks are those of one member.
type Callbacks struct {
	cfg     Config
	reloads *line
	others  *line
	end     context.CancelFunc // nil: nobody is followed
	ended   chan struct{}
}

// New returns callbacks that follow nobody yet.
func New(cfg Config) *Callbacks {
	return &Callbacks{cfg: cfg, reloads: newLine(cfg), others: newLine(cfg), ended: make(chan struct{})}
}

// Follow calls back for what happens to a member, until End is called.
func (c *Callbacks) Follow(m Member) {
	if len(c.cfg.Commands) == 0 {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.end = cancel
	go func() {
		defer close(c.ended)
		c.follow(ctx, m)
	}()
}

// begunLimit is how long End waits until the last callback has begun. That takes some milliseconds,
// and longer where a file system hangs, or where the one before cannot be ended.
const begunLimit = 3 * time.Second

// End is called when the member has ended. It returns once the last callback has begun. It waits
// for the end of none.
func (c *Callbacks) End() {
	if c.end == nil {
		return
	}
	c.end()
	limit := time.NewTimer(begunLimit)
	defer limit.Stop()
	follows := func() <-chan struct{} { return c.ended }
	for _, done := range []func() <-chan struct{}{follows, c.reloads.begun, c.others.begun} {
		select {
		case <-done():
		case <-limit.C:
			c.cfg.Log.Warn("the last callback was not called: the one before does not end")
			return
		}
	}
}

func (c *Callbacks) follow(ctx context.Context, m Member) {
	var h history
	for {
		last := ctx.Err() != nil // before the look: what has happened by then is in it
		s := m.Snapshot()
		if s != nil {
			c.call(h.next(s))
		}
		if last {
			c.call(h.end())
			return
		}
		var changed <-chan struct{}
		wait := time.Second / 10
		if s != nil {
			changed, wait = s.Changed(), s.LoopWait
		}
		select {
		case <-changed:
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

func (c *Callbacks) call(calls []call) {
	for _, x := range calls {
		command := c.cfg.Commands[x.action]
		if len(command) == 0 {
			continue
		}
		role := x.role
		if role == rolePrimary && c.cfg.Primary != "" {
			role = c.cfg.Primary
		}
		at := c.others
		if x.action == OnReload {
			at = c.reloads
		}
		args := append(append([]string{}, command...), string(x.action), role, c.cfg.Cluster)
		at.call(args, c.cfg.Log.With("callback", x.action, "role", role))
	}
}
