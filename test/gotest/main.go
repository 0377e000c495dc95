// Command gotest runs go test and says what it is doing: a line for each package that is done, and
// one at least each 10 s. It prints the output of tests that fail, and no other. It ends with a few
// lines on what was not tested, and why: else nobody would see that this machine leaves it out.
//
//	gotest [-slow N] [-cpu] [-files FOLDER] MODULE-FOLDER ARGUMENTS-OF-GO-TEST…
//
// Go test does not run a package again whose code, and whose files inside its module, are as they
// were when it passed. Tests that read files of other modules, or build the program, need -files: a
// package then runs again unless all files in that folder are as they were.
//
// With -slow it ends with a table of the N slowest packages and tests; with -cpu the table has the
// user and system time of each package's process and of what it started, which a busy machine
// changes less than the time by the clock.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// event is a line of go test -json.
type event struct {
	Action, Package, ImportPath, Test, Output string
	Elapsed                                   float64
}

// result is a package or a test.
type result struct {
	name      string
	wall, cpu float64 // in seconds
}

const cpuFile = "GOTEST_CPU_FILE"

func main() {
	if file := os.Getenv(cpuFile); file != "" && len(os.Args) > 1 && filepath.Ext(os.Args[1]) == ".test" {
		os.Exit(measured(file, os.Args[1:]))
	}
	slow := flag.Int("slow", 0, "print so many of the slowest packages and tests")
	cpu := flag.Bool("cpu", false, "measure the CPU time of each package")
	files := flag.String("files", "", "run what has passed again if any file in this folder has changed")
	every := flag.Duration("every", 10*time.Second, "say what is running at least so often")
	flag.Parse()
	if flag.NArg() < 2 {
		fmt.Fprintln(os.Stderr, "usage: gotest [-slow N] [-cpu] [-files FOLDER] MODULE-FOLDER ARGUMENTS-OF-GO-TEST…")
		os.Exit(2)
	}
	r := &run{begun: time.Now(), running: map[string]time.Time{}, output: map[string]*bytes.Buffer{}, every: *every}
	args := flag.Args()[1:]
	var err error
	if *files != "" {
		args, err = withFiles(args, *files)
	}
	code := 2
	if err == nil {
		code, err = r.goTest(flag.Arg(0), args, *cpu)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
		code = 2
	}
	r.tellLeftOut()
	if *slow > 0 {
		r.table(*slow)
	}
	os.Exit(code)
}

// withFiles returns the arguments with the sum of all files in a folder in them, as the name of a
// test to skip that nobody has: go test takes results from its cache only for the same arguments.
func withFiles(args []string, folder string) ([]string, error) {
	sum := sha256.New()
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "dist" || d.Name() == "bin"):
			return filepath.SkipDir
		case !d.Type().IsRegular():
			return nil
		}
		text, err := os.ReadFile(path)
		fmt.Fprintf(sum, "%s %d\n%s", path, len(text), text)
		return err
	})
	none := fmt.Sprintf("^Files%x$", sum.Sum(nil)[:16])
	args = slices.Clone(args)
	if at := slices.Index(args, "-skip"); at >= 0 && at+1 < len(args) {
		args[at+1] += "|" + none
		return args, err
	}
	return append([]string{"-skip", none}, args...), err
}

// run is one run of go test.
type run struct {
	begun   time.Time
	every   time.Duration
	running map[string]time.Time // tests at the top level, and packages
	output  map[string]*bytes.Buffer
	leftOut map[string][]string // by why: tests
	all     []result
	cpus    string
	done    int
}

func (r *run) goTest(dir string, args []string, cpu bool) (int, error) {
	if cpu {
		self, err := os.Executable()
		if err != nil {
			return 0, err
		}
		file, err := os.CreateTemp("", "gotest-")
		if err != nil {
			return 0, err
		}
		file.Close()
		defer os.Remove(file.Name())
		os.Setenv(cpuFile, file.Name())
		r.cpus = file.Name()
		args = append([]string{"-exec", self}, args...)
	}
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Dir = dir
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	interrupted := notified(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	lines := make(chan []byte)
	go func() {
		defer close(lines)
		for in := bufio.NewReader(out); ; {
			line, err := in.ReadBytes('\n')
			if len(line) > 0 {
				lines <- line
			}
			if err != nil {
				return
			}
		}
	}()
	tick := time.NewTimer(r.every)
	for open := true; open; {
		var line []byte
		select {
		case line, open = <-lines:
			if open && r.take(line) {
				tick.Reset(r.every)
			}
		case <-tick.C:
			r.progress()
			tick.Reset(r.every)
		case s := <-interrupted:
			cmd.Process.Signal(s)
		}
	}
	err = cmd.Wait()
	if r.cpus != "" {
		r.readCPU()
	}
	if cmd.ProcessState != nil && !cmd.ProcessState.Success() {
		return max(1, cmd.ProcessState.ExitCode()), nil
	}
	return 0, err
}

// notified returns the signals that go test is to have too. Those that this process was started to
// ignore, as in the background of a script or under nohup, are ignored, but not by the tests: what
// has a handler here has none after an exec. Many tests end programs by these signals.
func notified(all ...os.Signal) <-chan os.Signal {
	heeded, ignored := make(chan os.Signal, 1), make(chan os.Signal, 1)
	for _, s := range all {
		to := heeded
		if signal.Ignored(s) {
			to = ignored
		}
		signal.Notify(to, s)
	}
	return heeded
}

// take notes an event, and reports whether it printed something.
func (r *run) take(line []byte) (told bool) {
	var e event
	if json.Unmarshal(line, &e) != nil {
		os.Stdout.Write(line)
		return true
	}
	key := cmp.Or(e.Package, e.ImportPath) + " " + e.Test
	switch e.Action {
	case "start", "run":
		if !strings.Contains(e.Test, "/") {
			r.running[key] = time.Now()
		}
	case "output", "build-output":
		if r.output[key] == nil {
			r.output[key] = &bytes.Buffer{}
		}
		r.output[key].WriteString(e.Output)
		return false
	case "pass", "fail", "skip", "build-fail":
		delete(r.running, key)
		if e.Action == "fail" || e.Action == "build-fail" {
			if text := r.output[key]; text != nil {
				os.Stdout.Write(text.Bytes())
				told = true
			}
		}
		r.noteLeftOut(e)
		delete(r.output, key)
		if e.Test == "" || !strings.Contains(e.Test, "/") {
			r.all = append(r.all, result{name: key, wall: e.Elapsed})
		}
		if e.Test == "" && e.Action != "skip" && e.Action != "build-fail" {
			r.done++
			fmt.Printf("%s %-4s %s %.1fs\n", r.clock(), map[string]string{"pass": "ok", "fail": "FAIL"}[e.Action], e.Package, e.Elapsed)
			told = true
		}
	}
	return told
}

var (
	message   = regexp.MustCompile(`(?m)^\s*\S+\.go:\d+: (.*)$`)
	notTested = regexp.MustCompile(`NOT TESTED|WITHOUT|SKIPPED`) // in the words of a test that passed, too
)

// noteLeftOut notes why a test has skipped itself, or what it has left out though it passed.
func (r *run) noteLeftOut(e event) {
	text := r.output[e.Package+" "+e.Test]
	if text == nil || e.Test == "" || e.Action != "skip" && e.Action != "pass" {
		return
	}
	why := ""
	for _, m := range message.FindAllStringSubmatch(text.String(), -1) {
		if e.Action == "skip" || notTested.MatchString(m[1]) {
			why = strings.TrimSpace(m[1])
		}
	}
	if e.Action == "pass" && why == "" {
		return
	}
	if r.leftOut == nil {
		r.leftOut = map[string][]string{}
	}
	r.leftOut[why] = append(r.leftOut[why], filepath.Base(e.Package)+"."+e.Test)
}

// mostLeftOut is how many reasons are told, and mostNames how many tests of each.
const mostLeftOut, mostNames = 15, 3

func whole(test string) bool { return !strings.Contains(test, "/") }

// tellLeftOut says what was not tested: first what this machine cannot, or nobody asked for; what
// other parts of make verify have, and clauses that do not concern a store, only by their number.
func (r *run) tellLeftOut() {
	long, parts := 0, 0
	var whys []string
	for why, names := range r.leftOut {
		switch {
		case strings.HasPrefix(why, "long: "):
			long += len(names)
		case !notTested.MatchString(why) && !slices.ContainsFunc(names, whole):
			parts += len(names)
		default:
			whys = append(whys, why)
		}
	}
	slices.SortFunc(whys, func(a, b string) int {
		return cmp.Or(-cmp.Compare(len(notTested.FindString(a)), len(notTested.FindString(b))), cmp.Compare(a, b))
	})
	for i, why := range whys {
		if i == mostLeftOut {
			fmt.Printf("left out: %d reasons more\n", len(whys)-i)
			break
		}
		names, more := r.leftOut[why], ""
		if n := len(names) - mostNames; n > 0 {
			names, more = names[:mostNames], fmt.Sprintf(" and %d more", n)
		}
		fmt.Printf("left out: %s%s: %s\n", strings.Join(names, ", "), more, cmp.Or(why, "it does not say why"))
	}
	if long+parts > 0 {
		fmt.Printf("left out: %d long tests, which make verify has, and %d parts of tests\n", long, parts)
	}
}

func (r *run) clock() string { return fmt.Sprintf("[%4.0fs]", time.Since(r.begun).Seconds()) }

// progress says what has been running for the longest time.
func (r *run) progress() {
	type now struct {
		name  string
		since time.Time
	}
	var all []now
	for key, since := range r.running {
		if pkg, test, _ := strings.Cut(key, " "); test != "" {
			all = append(all, now{filepath.Base(pkg) + "." + test, since})
		}
	}
	slices.SortFunc(all, func(a, b now) int { return a.since.Compare(b.since) })
	var names []string
	for _, n := range all[:min(3, len(all))] {
		names = append(names, fmt.Sprintf("%s for %.0fs", n.name, time.Since(n.since).Seconds()))
	}
	fmt.Printf("%s %d packages done; %s\n", r.clock(), r.done, cmp.Or(strings.Join(names, ", "), "compiling"))
}

// table prints the slowest.
func (r *run) table(n int) {
	by := func(f func(result) float64) func(a, b result) int {
		return func(a, b result) int { return cmp.Compare(f(b), f(a)) }
	}
	slices.SortFunc(r.all, by(func(x result) float64 { return max(x.wall, x.cpu) }))
	if r.cpus == "" {
		fmt.Printf("%9s\n", "clock")
	} else {
		fmt.Printf("%9s %9s\n", "clock", "CPU")
	}
	line := func(wall, cpu float64, what string) {
		if r.cpus == "" {
			fmt.Printf("%8.1fs %s\n", wall, what)
		} else {
			fmt.Printf("%8.1fs %8.1fs %s\n", wall, cpu, what)
		}
	}
	for _, x := range r.all[:min(n, len(r.all))] {
		line(x.wall, x.cpu, x.name)
	}
	var wall, cpu float64
	for _, x := range r.all {
		if strings.HasSuffix(x.name, " ") {
			wall, cpu = wall+x.wall, cpu+x.cpu
		}
	}
	line(wall, cpu, fmt.Sprintf("all packages; %s in all", time.Since(r.begun).Round(time.Second)))
}

// measured runs a test binary and adds its CPU time to a file.
func measured(file string, args []string) int {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, cpuFile) })
	err := cmd.Run()
	if cmd.ProcessState == nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0); err == nil {
		dir, _ := os.Getwd()
		fmt.Fprintf(f, "%s %.2f\n", dir, (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds())
		f.Close()
	}
	return cmd.ProcessState.ExitCode()
}

// readCPU joins what was measured, by folder, with the packages, by import path.
func (r *run) readCPU() {
	text, _ := os.ReadFile(r.cpus)
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		var dir string
		var cpu float64
		if n, _ := fmt.Sscan(line, &dir, &cpu); n < 2 {
			continue
		}
		best := -1
		for i, x := range r.all {
			pkg := strings.TrimSuffix(x.name, " ")
			rest := strings.TrimPrefix(pkg, "github.com/primacy-go/primacy")
			if strings.HasSuffix(x.name, " ") && strings.HasSuffix(dir, rest) && (best < 0 || len(x.name) > len(r.all[best].name)) {
				best = i
			}
		}
		if best >= 0 {
			r.all[best].cpu = cpu
		}
	}
}
