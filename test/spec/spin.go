package main

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

//go:embed *.pml
var sources embed.FS

// limits of one search: a search that meets one has proved nothing, and fails.
type limits struct {
	Megabytes int
	Time      time.Duration
}

// result is what a search found.
type result struct {
	search
	States  int64
	Depth   int64
	Memory  float64       // megabytes
	CPU     time.Duration // of spin, gcc and the search: what else the machine does has no part in it
	Story   []string      // of the counterexample, if there is one
	Problem error         // why this is not the answer that it must be; nil: it is
}

// tools says what is missing to run a search.
func tools() error {
	for _, tool := range []string{"spin", "gcc"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("%s is missing: apt-get install spin gcc", tool)
		}
	}
	return nil
}

// defines is how spin gets the options.
func (s search) defines() []string {
	var d []string
	if s.Want != "" && s.Want != reached {
		d = append(d, "-D"+s.Name)
	}
	for _, x := range s.Define {
		d = append(d, "-D"+x)
	}
	return d
}

// run builds a search of its own in a temporary directory and runs it, breadth first: so a
// counterexample is one of the shortest. It changes nothing else, and ends what it started when ctx
// ends.
func (s search) run(ctx context.Context, l limits) (r result) {
	r.search = s
	dir, err := os.MkdirTemp("", "spec")
	if err != nil {
		r.Problem = err
		return r
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(ctx, l.Time)
	defer cancel()
	sh := &shell{ctx: ctx, dir: dir}
	defer func() { r.CPU = sh.cpu }()
	out, err := s.build(sh, l)
	if err == nil {
		out, err = sh.run("./pan", "-E", "-w23") // -E: that nothing can happen any more is no error here
	}
	switch {
	case ctx.Err() != nil:
		r.Problem = fmt.Errorf("not complete: stopped after %v", l.Time)
	case err != nil:
		r.Problem = fmt.Errorf("%w\n%s", err, out)
	default:
		r.read(out)
		r.judge(sh, out)
	}
	return r
}

// build turns the model into ./pan.
func (s search) build(sh *shell, l limits) (string, error) {
	src, err := sources.ReadFile(s.Model + ".pml")
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(sh.dir, s.Model+".pml"), src, 0o600); err != nil {
		return "", err
	}
	if out, err := sh.run("spin", append(append([]string{"-a"}, s.defines()...), s.Model+".pml")...); err != nil {
		return out, err
	}
	level := "-O2"
	switch { // a short search takes less than the compiler's work
	case s.Want != "":
		level = "-O0"
	case s.Cut:
		level = "-O1"
	}
	return sh.run("gcc", "-w", level, "-DSAFETY", "-DNOREDUCE", "-DBFS", fmt.Sprintf("-DMEMLIM=%d", l.Megabytes),
		"-o", "pan", "pan.c")
}

// shell runs programs in one directory and counts their CPU time.
type shell struct {
	ctx context.Context
	dir string
	cpu time.Duration
}

// run returns all that the program printed.
func (sh *shell) run(name string, args ...string) (string, error) {
	cmd := exec.CommandContext(sh.ctx, name, args...)
	cmd.Dir = sh.dir
	out, err := cmd.CombinedOutput()
	if p := cmd.ProcessState; p != nil {
		sh.cpu += p.UserTime() + p.SystemTime()
	}
	if err != nil {
		err = fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return string(out), err
}

var (
	reStates = regexp.MustCompile(`(\d+) states, stored`)
	reDepth  = regexp.MustCompile(`depth reached (\d+), errors: (\d+)`)
	reMemory = regexp.MustCompile(`([\d.]+)\s+total actual memory usage`)
)

// read takes the figures out of pan's report.
func (r *result) read(out string) {
	if m := reStates.FindStringSubmatch(out); m != nil {
		r.States, _ = strconv.ParseInt(m[1], 10, 64)
	}
	if m := reDepth.FindStringSubmatch(out); m != nil {
		r.Depth, _ = strconv.ParseInt(m[1], 10, 64)
	}
	if m := reMemory.FindStringSubmatch(out); m != nil {
		r.Memory, _ = strconv.ParseFloat(m[1], 64)
	}
}

var errNoStory = errors.New("the counterexample could not be told")

// judge decides whether pan's report is the answer that the search must give.
func (r *result) judge(sh *shell, out string) {
	m := reDepth.FindStringSubmatch(out)
	if m == nil || r.States == 0 {
		r.Problem = fmt.Errorf("no report:\n%s", out)
		return
	}
	found := m[2] != "0"
	if found {
		if r.Story, r.Problem = r.tell(sh); r.Problem != nil {
			return
		}
	}
	last := ""
	if n := len(r.Story); n > 0 {
		last = r.Story[n-1]
	}
	switch {
	case found && r.Want == "":
		r.Problem = fmt.Errorf("there is a counterexample: %s", last)
	case found && !strings.HasPrefix(last, r.Want):
		r.Problem = fmt.Errorf("the counterexample ends in %q, not in %q", last, r.Want)
	case found:
	case incomplete(out):
		r.Problem = errors.New("not complete: it met a limit of memory or depth")
	case r.Want == reached:
		r.Problem = errors.New("it cannot happen: what the model shows is empty")
	case r.Want != "":
		r.Problem = errors.New("no counterexample: the rule is not needed, or the model does not show what for")
	}
}

// incomplete reports whether a search without an error has left states out.
func incomplete(out string) bool {
	for _, s := range []string{"Search not completed", "max search depth too small", "memory exceeded",
		"out of memory", "-DMEMLIM", "Bit statespace", "hash-compact"} {
		if strings.Contains(strings.ToLower(out), strings.ToLower(s)) {
			return true
		}
	}
	return !strings.Contains(out, "No errors found") && !strings.Contains(out, "errors: 0")
}

// tell replays the counterexample and returns its sentences.
func (s search) tell(sh *shell) ([]string, error) {
	out, err := sh.run("spin", append(append([]string{"-t", "-T", "-B"}, s.defines()...), s.Model+".pml")...)
	if err != nil && out == "" {
		return nil, fmt.Errorf("%w: %w", errNoStory, err)
	}
	var story []string
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "spin:") {
			continue
		}
		story = append(story, line)
		if strings.HasPrefix(line, "VIOLATED") || strings.HasPrefix(line, reached) {
			break // spin goes on to the end of the step
		}
	}
	if len(story) == 0 {
		return nil, errNoStory
	}
	return story, nil
}

// timeline writes a story with the time at which each sentence happens, in ticks.
func timeline(story []string) string {
	var b bytes.Buffer
	now := 0
	for _, line := range story {
		if rest, ok := strings.CutPrefix(line, "tick"); ok {
			now++
			line = "──── a tick" + rest
		}
		fmt.Fprintf(&b, "%5d  %s\n", now, line)
	}
	return b.String()
}
