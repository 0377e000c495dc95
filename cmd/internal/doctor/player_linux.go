package doctor

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/primacy-go/primacy/internal/proxy"
)

// player is one candidate of the torture: a process, and the links it has to the store.
type player struct {
	id    string
	conf  Conf
	links []*proxy.Proxy // one for each server; none where the store has no network
	busy  bool           // a fault is under way; of the scheduler

	mu     sync.Mutex
	cmd    *exec.Cmd
	stdin  io.Closer
	stderr bytes.Buffer
	exited chan struct{}
}

// up starts the process. Each line it writes goes to hear.
func (p *player) up(command []string, do func(func()), hear func(who, line string)) error {
	c := exec.Command(command[0], command[1:]...)
	c.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "PRIMACY_") })
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL} // ^C is for the doctor only
	in, err1 := c.StdinPipe()
	out, err2 := c.StdoutPipe()
	if err1 != nil || err2 != nil {
		return fmt.Errorf("start a candidate: %v, %v", err1, err2)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stderr.Reset()
	c.Stderr = &tail{p: p}
	var err error
	do(func() { err = c.Start() })
	if err != nil {
		return fmt.Errorf("start a candidate: %w", err)
	}
	exited := make(chan struct{})
	p.cmd, p.stdin, p.exited = c, in, exited
	go func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			hear(p.id, lines.Text())
		}
		_ = c.Wait()
		close(exited)
	}()
	conf, err := json.Marshal(p.conf)
	if err == nil {
		_, err = in.Write(append(conf, '\n'))
	}
	return err
}

// tail keeps the beginning of what a process says on stderr.
type tail struct{ p *player }

func (t *tail) Write(b []byte) (int, error) {
	t.p.mu.Lock()
	defer t.p.mu.Unlock()
	if t.p.stderr.Len() < 2000 {
		t.p.stderr.Write(b)
	}
	return len(b), nil
}

// words is what the process said last on stderr.
func (p *player) words() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(strings.Fields(p.stderr.String()), " ")
}

func (p *player) now() (*exec.Cmd, chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd, p.exited
}

// signal sends a signal and reports whether the process was there.
func (p *player) signal(sig syscall.Signal) bool {
	c, _ := p.now()
	return c != nil && c.Process.Signal(sig) == nil
}

func (p *player) ended() bool {
	_, exited := p.now()
	select {
	case <-exited:
		return true
	default:
		return false
	}
}

// overran reports whether the process ended itself because its work outlived its right: what a frozen leader must do.
func (p *player) overran() bool {
	c, _ := p.now()
	return p.ended() && c.ProcessState != nil && c.ProcessState.ExitCode() == 122
}

// awaitExit waits for the end of the process and reports whether it came in time.
func (p *player) awaitExit(limit time.Duration) bool {
	_, exited := p.now()
	if exited == nil {
		return true
	}
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-exited:
		return true
	case <-t.C:
		return false
	}
}

// down ends the process: asked to, it gives its lease back.
func (p *player) down() {
	p.signal(syscall.SIGCONT)
	p.signal(syscall.SIGTERM)
	if !p.awaitExit(4 * time.Second) {
		p.signal(syscall.SIGKILL)
		p.awaitExit(4 * time.Second)
	}
}
