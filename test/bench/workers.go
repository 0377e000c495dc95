package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// worker is a worker's process, as its parent has it.
type worker struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	events chan event
}

// hire starts a worker.
func hire(j job) (*worker, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	w := &worker{cmd: exec.Command(self, workerArg), events: make(chan event, 16)}
	w.cmd.Stderr = os.Stderr
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := w.cmd.Start(); err != nil {
		return nil, err
	}
	go w.listen(out)
	line, err := json.Marshal(j)
	if err == nil {
		_, err = w.in.Write(append(line, '\n'))
	}
	if err != nil {
		w.kill()
	}
	return w, err
}

func (w *worker) listen(out io.Reader) {
	defer close(w.events)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			e = event{Kind: "error", Text: fmt.Sprintf("a worker said %q", lines.Text())}
		}
		w.events <- e
	}
}

// await returns the next event of that kind.
func (w *worker) await(ctx context.Context, kind string) (event, error) {
	for {
		select {
		case e, ok := <-w.events:
			switch {
			case !ok:
				return e, fmt.Errorf("a worker ended before it was %s", kind)
			case e.Kind == "error":
				return e, fmt.Errorf("a worker: %s", e.Text)
			case e.Kind == kind:
				return e, nil
			}
		case <-ctx.Done():
			return event{}, fmt.Errorf("waiting for a worker to be %s: %w", kind, context.Cause(ctx))
		}
	}
}

// signal sends a signal to the process and to all that it started.
func (w *worker) signal(sig syscall.Signal) error { return syscall.Kill(-w.cmd.Process.Pid, sig) }

// kill ends the process as the kernel would, and waits for it.
func (w *worker) kill() time.Time {
	at := time.Now()
	_ = w.signal(syscall.SIGKILL)
	_ = w.cmd.Wait()
	return at
}

// close ends what the worker holds, so that its leases do not end while somebody else is measured,
// and then the process.
func (w *worker) close(ctx context.Context) error {
	defer w.kill()
	if _, err := w.in.Write([]byte("close\n")); err != nil {
		return err
	}
	_, err := w.await(ctx, "closed")
	return err
}

// usage is what a process takes.
type usage struct {
	goroutines          int
	resident, anonymous float64 // bytes: all that is in memory, and of it what is not a file
}

// stats returns what the process takes once what is garbage is given back.
func (w *worker) stats(ctx context.Context) (u usage, err error) {
	if _, err := w.in.Write([]byte("stats\n")); err != nil {
		return u, err
	}
	e, err := w.await(ctx, "stats")
	if err != nil {
		return u, err
	}
	text, err := os.ReadFile("/proc/" + strconv.Itoa(w.cmd.Process.Pid) + "/status")
	if err != nil {
		return u, err
	}
	u.goroutines = e.Goroutines
	u.resident, err = kilobytes(text, "VmRSS:")
	if err == nil {
		u.anonymous, err = kilobytes(text, "RssAnon:")
	}
	return u, err
}

// kilobytes returns a field of a process's status, in bytes.
func kilobytes(status []byte, field string) (float64, error) {
	for line := range bytes.Lines(status) {
		if rest, ok := strings.CutPrefix(string(line), field); ok {
			kb, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
			return kb * 1024, err
		}
	}
	return 0, fmt.Errorf("no %s of the process", field)
}
