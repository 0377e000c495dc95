//go:build linux

package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// here marks lines of the README that TestTheReadme types itself; the others name the test that
// does.
const here = "here"

var readmeLines = map[string]string{
	"go run ./cmd/primacy demo":                                    "TestDemoEndsWellAndLeavesNothing",
	"go build -o bin/primacy ./cmd/primacy && PATH=$PWD/bin:$PATH": "TestTheWholePathFromSource",
	// with the address of a server that is there
	"export PRIMACY_STORE=etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379": here,
	"primacy run billing -- ./invoicer --verbose":                           here,
	"primacy leader billing":                                                here,
	"primacy status":                                                        here,
	"primacy observe billing":                                               here,
	`primacy resign billing --reason "new kernel"`:                          here,
	"primacy transfer billing --to web-3":                                   here,
	"primacy drain web-2":                                                   here,
	"primacy history billing":                                               here,
	"primacy lock billing -- ./bill":                                        here,
	"primacy lock -n billing -- ./bill":                                     here,
	"primacy lock -w 30 billing -- ./bill":                                  here,
	"primacy lock -s catalog -- ./report":                                   here,
	"primacy lock --slots 3 exports -- ./export":                            here,
	"primacy lock billing":                                                  here,
	"primacy status billing":                                                here,
	"primacy top":                                                           "TestTopByKeys",
	`primacy cron nightly "0 3 * * *" -- ./report`:                          here,
	"primacy cron -f cron.toml":                                             here,
	"primacy cron status":                                                   here,
	"primacy serve":                                                         "TestTheServePageHolds",
	"primacy doctor":                                                        "TestDoctor",
	"primacy doctor --torture 60s":                                          "TestTorture",
}

// lineOf takes the comment off a line of a document.
var lineOf = regexp.MustCompile(`^(.*?)(?:\s+#.*)?$`)

// typedLines returns the lines of the blocks of shell in a document.
func typedLines(t *testing.T, path string) (lines []string) {
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i, block := range strings.Split(string(b), "```") {
		lang, rest, _ := strings.Cut(block, "\n")
		if i%2 == 0 || lang != "" && lang != "sh" {
			continue
		}
		for _, l := range strings.Split(strings.TrimSpace(rest), "\n") {
			if l = lineOf.FindStringSubmatch(strings.TrimSpace(l))[1]; l != "" {
				lines = append(lines, l)
			}
		}
	}
	return lines
}

// TestWhatTheReadmeSaysIsTyped holds the README and the pages of locks to tests that run each line, and make to its targets.
func TestWhatTheReadmeSaysIsTyped(t *testing.T) {
	exists := testsOfThisRepository(t)
	seen := map[string]bool{}
	for _, doc := range []string{"../../README.md", "../../docs/commands.md", "../../docs/locks.md", "../../docs/evidence.md"} {
		for _, l := range typedLines(t, doc) {
			seen[l] = true
			by, ok := readmeLines[l]
			switch {
			case strings.HasPrefix(l, "make "):
				cmd := exec.Command("make", append([]string{"-n"}, strings.Fields(l)[1:]...)...)
				cmd.Dir = "../.."
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%s: %q: %v: %s", doc, l, err, out)
				}
			case !ok:
				t.Errorf("%s: nobody types %q", doc, l)
			case by != here && !exists[by]:
				t.Errorf("%s: %q is typed by %s, which does not exist", doc, l, by)
			}
		}
	}
	for l := range readmeLines {
		if !seen[l] {
			t.Errorf("%q is in no document any more", l)
		}
	}
}

func testsOfThisRepository(t *testing.T) map[string]bool {
	exists := map[string]bool{}
	fn := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		for _, m := range fn.FindAllSubmatch(b, -1) {
			exists[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return exists
}

// TestTheWholePathFromSource builds the program as the README does.
func TestTheWholePathFromSource(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "primacy")
	build := exec.Command("go", "build", "-o", out, "./cmd/primacy")
	build.Dir = "../.."
	if b, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	if b, err := exec.Command(out, "--help").CombinedOutput(); err != nil || !strings.Contains(string(b), "primacy run") {
		t.Fatalf("%v: %s", err, b)
	}
}

// reader is a world in which somebody types what the README says.
type reader struct {
	*world
	typed map[string]bool
}

// types runs a line and returns what it shows. It must end with that status.
func (r *reader) types(line string, status int) string {
	r.Helper()
	r.typed[line] = true
	ctx, cancel := context.WithTimeout(r.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", line)
	cmd.Env, cmd.Dir = r.env, r.dir
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || cmd.ProcessState.ExitCode() != status {
		r.Fatalf("%q: exit %d (%v), want %d: %s", line, cmd.ProcessState.ExitCode(), err, status, out)
	}
	return string(out)
}

// shows runs a line until it shows something: what was asked for takes its time.
func (r *reader) shows(line string, texts ...string) {
	r.Helper()
	r.eventually(line+" shows "+strings.Join(texts, ", "), func() bool {
		out := r.types(line, 0)
		for _, s := range texts {
			if !strings.Contains(out, s) {
				return false
			}
		}
		return true
	})
}

// leaves runs a line of some node in the background and returns its output and what ends it.
func (r *reader) leaves(node, line string) (out *buffer, end func(syscall.Signal) int) {
	r.Helper()
	r.typed[line] = true
	cmd := exec.Command("bash", "-c", "exec "+line)
	out = &buffer{}
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = append(r.env[:len(r.env):len(r.env)], "PRIMACY_ID="+node), r.dir, out, out
	if err := cmd.Start(); err != nil {
		r.Fatal(err)
	}
	exited := make(chan struct{})
	go func() { _ = cmd.Wait(); close(exited) }()
	r.Cleanup(func() { _ = cmd.Process.Kill(); <-exited })
	return out, func(sig syscall.Signal) int {
		r.Helper()
		_ = cmd.Process.Signal(sig)
		select {
		case <-exited:
		case <-time.After(limit):
			r.Fatalf("%q still runs: %s", line, out.String())
		}
		return exitCode(cmd.ProcessState)
	}
}

func newReader(t *testing.T) *reader {
	w := newWorld(t)
	for _, name := range []string{"invoicer", "bill", "report", "export"} {
		script := "#!/bin/sh\necho \"" + name + " $PRIMACY_TOKEN\"\n"
		if name == "invoicer" {
			script += "exec sleep 1000\n"
		}
		if err := os.WriteFile(filepath.Join(w.dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return &reader{w, map[string]bool{}}
}

// TestTheReadme types what the README says, in its order, as three nodes and an operator would.
func TestTheReadme(t *testing.T) {
	r := newReader(t)
	store := "export PRIMACY_STORE=etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379"
	r.typed[store] = true
	const run = "primacy run billing -- ./invoicer --verbose"
	_, end1 := r.leaves("web-1", run)
	r.shows("primacy status", "billing", "web-1")
	r.shows("primacy leader billing", "web-1")
	_, end2 := r.leaves("web-2", run)
	_, end3 := r.leaves("web-3", run)
	seen, endObserver := r.leaves("ops", "primacy observe billing")
	r.eventually("web-2 and web-3 wait", func() bool {
		out := r.types("primacy status billing", 0)
		return strings.Contains(out, "web-2") && strings.Contains(out, "web-3")
	})
	r.types(`primacy resign billing --reason "new kernel"`, 0)
	if code := end1(0); code != exitResigned {
		t.Errorf("the leader that was asked to resign ended with %d", code)
	}
	r.eventually("the next one leads", func() bool { return !strings.Contains(r.types("primacy leader billing", 0), "web-1") })
	if strings.Contains(r.types("primacy leader billing", 0), "web-3") { // the order in which they came in is not ours
		r.types("primacy transfer billing --to web-2", 0)
		_, end3 = r.leaves("web-3", run)
		r.shows("primacy leader billing", "web-2")
		r.eventually("web-3 waits", func() bool { return strings.Contains(r.types("primacy status billing", 0), "web-3") })
	}
	r.types("primacy transfer billing --to web-3", 0)
	r.shows("primacy leader billing", "web-3")
	if code := end2(0); code != exitResigned {
		t.Errorf("the leader that handed over ended with %d", code)
	}
	r.types("primacy drain web-2", 0) // it leads nothing any more
	r.eventually("the history", func() bool {
		out := r.types("primacy history billing", 0)
		return strings.Contains(out, "new kernel") && strings.Contains(out, "transferred") && strings.Contains(out, "web-3")
	})
	end3(syscall.SIGTERM)
	r.eventually("the observer tells", func() bool { return strings.Contains(seen.String(), "web-3") })
	endObserver(syscall.SIGTERM)
	r.locks()
	r.cron()
	for l, by := range readmeLines {
		if by == here && !r.typed[l] {
			t.Errorf("%q was not typed", l)
		}
	}
}

func (r *reader) locks() {
	_, end := r.leaves("holder", "primacy lock billing")
	r.shows("primacy status", "holder")
	r.types("primacy lock -n billing -- ./bill", exitNotAcquired)
	end(syscall.SIGTERM)
	for line, says := range map[string]string{"primacy lock billing -- ./bill": "bill", "primacy lock -n billing -- ./bill": "bill", "primacy lock -w 30 billing -- ./bill": "bill",
		"primacy lock -s catalog -- ./report": "report", "primacy lock --slots 3 exports -- ./export": "export"} {
		if out := r.types(line, 0); !strings.Contains(out, says+" ") {
			r.Errorf("%q shows %q", line, out)
		}
	}
}

func (r *reader) cron() {
	jobs := "[jobs.often]\nschedule = \"@every 1s\"\ncommand = [\"./report\"]\n"
	if err := os.WriteFile(filepath.Join(r.dir, "cron.toml"), []byte(jobs), 0o644); err != nil {
		r.Fatal(err)
	}
	_, end1 := r.leaves("web-1", `primacy cron nightly "0 3 * * *" -- ./report`)
	out, end2 := r.leaves("web-2", "primacy cron -f cron.toml")
	r.eventually("the job has run", func() bool { return strings.Contains(out.String(), "report ") })
	r.shows("primacy cron status", "nightly", "often")
	if code := end1(syscall.SIGTERM); code != 0 {
		r.Errorf("cron ended with %d", code)
	}
	if code := end2(syscall.SIGTERM); code != 0 {
		r.Errorf("cron ended with %d: %s", code, out.String())
	}
}
