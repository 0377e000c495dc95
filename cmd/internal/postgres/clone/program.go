package clone

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
)

// program is one of PostgreSQL's, to be run once.
type program struct {
	name  string
	args  []string
	stdin string
	each  func(line string) // gets each line that it prints; may be nil
	out   func(line string) // gets those of standard output instead, whole; nil: each does
}

// run runs a program to its end. When run returns, no process is left of it and of what it started,
// and where ctx has ended first, that is the error. If the program fails, the error is one line
// with its last words. A program ends with this process too.
func (d *Dir) run(ctx context.Context, p program) error {
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	cmd := exec.Command(d.program(p.name), p.args...)
	cmd.Env, cmd.Dir = environment(), "/"
	cmd.Stdin = strings.NewReader(p.stdin)
	cmd.ExtraFiles = []*os.File{d.lock}
	cmd.SysProcAttr = ownGroup()
	var words []string
	heard, err := p.hear(cmd, &words)
	if err != nil {
		return err
	}
	runtime.LockOSThread() // the program ends with the thread that has started it
	defer runtime.UnlockOSThread()
	err = cmd.Start()
	if err != nil {
		heard()
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	exited, killed := make(chan struct{}), make(chan struct{})
	go func() {
		awaitExit(cmd.Process.Pid)
		close(exited)
	}()
	go func() {
		select {
		case <-ctx.Done():
		case <-exited:
		}
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		close(killed)
	}()
	heard() // until nobody is left who could write
	<-exited
	<-killed
	err = cmd.Wait()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", p.name, context.Cause(ctx))
	}
	if last := lastWords(p.name, words); last != "" {
		return &failure{p.name, last}
	}
	return &failure{p.name, err.Error()}
}

// hear connects what the program prints. heard, which is called once, returns when all of it was
// read; words are then its last lines.
func (p program) hear(cmd *exec.Cmd, words *[]string) (heard func(), err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = w, w
	if p.out == nil {
		return func() {
			w.Close()
			*words = listen(r, p.each)
			r.Close()
		}, nil
	}
	// In one pipe a message may come in the middle of a line.
	outR, outW, err := os.Pipe()
	if err != nil {
		r.Close()
		w.Close()
		return nil, err
	}
	cmd.Stdout = outW
	return func() {
		w.Close()
		outW.Close()
		done := make(chan struct{})
		go func() {
			*words = listen(r, p.each)
			r.Close()
			close(done)
		}()
		listen(outR, p.out)
		outR.Close()
		<-done
	}, nil
}

// failure is how a program failed.
type failure struct{ name, words string }

func (f *failure) Error() string { return f.name + ": " + f.words }

// listen reads what a program prints, and returns the last lines of it.
func listen(r *os.File, each func(string)) (last []string) {
	const keep, longest = 20, 1 << 20
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, longest)
	lines.Split(func(b []byte, end bool) (int, []byte, error) {
		if i := bytes.IndexAny(b, "\r\n"); i >= 0 { // a program ends a line of progress with \r
			return i + 1, b[:i], nil
		}
		if len(b) >= longest/2 || end && len(b) > 0 {
			return len(b), b, nil
		}
		return 0, nil, nil
	})
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" {
			continue
		}
		if each != nil {
			each(line)
		}
		if last = append(last, line); len(last) > keep {
			last = last[1:]
		}
	}
	return last
}

var complaint = regexp.MustCompile(`(?i)\b(error|fatal|panic):`)

// lastWords returns one line that says why a program failed.
func lastWords(name string, lines []string) string {
	const most = 600
	says := slices.DeleteFunc(slices.Clone(lines), func(l string) bool { return !complaint.MatchString(l) })
	if len(says) == 0 {
		says = lines
	}
	says = slices.Clone(says[max(0, len(says)-2):])
	for i, l := range says {
		says[i] = strings.TrimPrefix(strings.TrimPrefix(l, name+": "), "error: ")
	}
	text := strings.Join(says, "; ")
	if len(text) > most {
		text = "…" + strings.ToValidUTF8(text[len(text)-most:], "")
	}
	return text
}

// environment is that of a program: ours may hold secrets, and settings of libpq that would find
// their way into connections. The messages are in English, as they are looked at.
func environment() []string {
	all := []string{"LC_ALL=C", "TZ=UTC"}
	for _, one := range os.Environ() {
		name, _, _ := strings.Cut(one, "=")
		if slices.Contains([]string{"PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "LD_LIBRARY_PATH"}, name) ||
			strings.HasPrefix(name, "KRB5") {
			all = append(all, one)
		}
	}
	return all
}

// control runs pg_controldata.
func (d *Dir) control(ctx context.Context) (map[string]string, error) {
	values := map[string]string{}
	err := d.run(ctx, program{name: "pg_controldata", args: []string{"-D", d.cfg.Data}, each: func(line string) {
		if name, value, ok := strings.Cut(line, ":"); ok {
			values[name] = strings.TrimSpace(value)
		}
	}})
	if err == nil && values["Database system identifier"] == "" {
		err = errors.New("pg_controldata says no system identifier")
	}
	return values, err
}
