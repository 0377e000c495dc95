package mutations

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"
)

// limit is how long one run of a test may take, compiling included.
const limit = 7 * time.Minute

// mutation is one patch.
type mutation struct {
	name     string
	what     string
	pkg, run string   // the test that must fail
	files    []string // that the patch changes, from the root of the module
	path     string
}

// verdict is what became of a mutation.
type verdict struct {
	mutation
	seeds string
	took  time.Duration
	err   error // errSkipped, errFailsAnyway, or why it was not caught
}

// errSkipped says that the test of a mutation skips itself on this machine also without the
// mutation: a kernel without namespaces has no part in a rule about them.
var errSkipped = errors.New("its test skips itself here")

// errFailsAnyway says that the test of a mutation fails on this machine also without the mutation,
// or fails before it has begun: it would seem to notice any mutation.
var errFailsAnyway = errors.New("its test fails without the mutation too")

func (v verdict) String() string {
	switch {
	case v.err == nil:
		return "caught"
	case errors.Is(v.err, errSkipped):
		return "not judged: " + v.err.Error()
	case errors.Is(v.err, errFailsAnyway):
		return "NOT JUDGED"
	}
	return "NOT CAUGHT"
}

var (
	header  = regexp.MustCompile(`(?s)\A# What: ([^\n]+)\n# Run: (\S+) (\S+)\n`)
	changed = regexp.MustCompile(`(?m)^\+\+\+ (?:b/)?(\S+)`)
	seed    = regexp.MustCompile(`seed (\d+)`)
	skip    = regexp.MustCompile(`((?:    .*\n)*)--- SKIP: `)
	begun   = regexp.MustCompile(`(?m)^=== RUN   (Test[^\s/]*)$`)
	ended   = regexp.MustCompile(`(?m)^--- (?:PASS|SKIP): (Test\S*)`)
)

// root is the folder of the module.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func load(t *testing.T) []mutation {
	t.Helper()
	paths, err := filepath.Glob("*.patch")
	if err != nil {
		t.Fatal(err)
	}
	var all []mutation
	for _, p := range paths {
		m, err := parse(p)
		if err != nil {
			t.Fatalf("%s: %v", p, err)
		}
		all = append(all, m)
	}
	// By name: in the order of files "a-b.patch" comes before "a.patch".
	slices.SortFunc(all, func(a, b mutation) int { return strings.Compare(a.name, b.name) })
	return all
}

func parse(path string) (mutation, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return mutation{}, err
	}
	h := header.FindSubmatch(text)
	if h == nil {
		return mutation{}, fmt.Errorf("the first two lines must be `# What: …` and `# Run: ./package TestRegexp`")
	}
	abs, err := filepath.Abs(path)
	m := mutation{name: strings.TrimSuffix(filepath.Base(path), ".patch"), what: string(h[1]), pkg: string(h[2]), run: string(h[3]), path: abs}
	for _, f := range changed.FindAllSubmatch(text, -1) {
		name := string(f[1])
		if strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "test/") {
			return m, fmt.Errorf("it changes %s: a mutation changes what ships, never what judges it", name)
		}
		m.files = append(m.files, name)
	}
	if len(m.files) == 0 {
		return m, fmt.Errorf("it changes no file")
	}
	return m, err
}

// apply writes the mutated copies to dir and returns the overlay file that puts them in place of
// the sources.
func (m mutation) apply(root, dir string) (overlay string, err error) {
	replace := map[string]string{}
	for _, f := range m.files {
		text, err := os.ReadFile(filepath.Join(root, f))
		if err != nil {
			return "", err
		}
		to := filepath.Join(dir, f)
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			return "", err
		}
		if err := os.WriteFile(to, text, 0o600); err != nil {
			return "", err
		}
		replace[filepath.Join(root, f)] = to
	}
	cmd := exec.Command("git", "apply", "--whitespace=nowarn", m.path)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir)) // else a repository around dir would be patched
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("the patch does not apply, the code has moved on: mend the patch: %s", out)
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay = filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, text, 0o600)
}

// test runs the test that must fail, over the mutated files or, with no overlay, over the code as
// it is. Of the latter go test may know from its cache that it passes.
func (m mutation) test(ctx context.Context, root, overlay string) (text string, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	args := []string{"test", "-vet=off", "-v", "-failfast", "-timeout", "6m", "-run", m.run}
	// The compiler, which takes most of the time, collects its garbage seldom.
	env := append(os.Environ(), "GOGC=400")
	if overlay != "" {
		args = append(args, "-count=1", "-overlay", overlay)
		env = append(env, "MUTATION="+m.name) // more seeds, until one notices
	}
	cmd := exec.CommandContext(ctx, "go", append(args, m.pkg)...)
	cmd.Dir, cmd.Env = root, env
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// unmutated runs tests over the code as it is, each once however many mutations name it.
type unmutated struct {
	mu   sync.Mutex
	runs map[string]func() (text string, err error)
}

func (u *unmutated) test(ctx context.Context, root string, m mutation) (text string, err error) {
	u.mu.Lock()
	key := m.pkg + " " + m.run
	run := u.runs[key]
	if run == nil {
		run = sync.OnceValues(func() (string, error) { return m.test(ctx, root, "") })
		if u.runs == nil {
			u.runs = map[string]func() (string, error){}
		}
		u.runs[key] = run
	}
	u.mu.Unlock()
	return run()
}

// failed reports whether a test has failed, or ended its process: not all that began have ended
// well. What fails before or after the tests, as a TestMain does, is no failed test.
func failed(text string) bool {
	well := map[string]bool{}
	for _, e := range ended.FindAllStringSubmatch(text, -1) {
		well[e[1]] = true
	}
	for _, b := range begun.FindAllStringSubmatch(text, -1) {
		if !well[b[1]] {
			return true
		}
	}
	return false
}

// skipped says why a test that passed has judged nothing: whole tests skipped themselves, and none
// was run.
func skipped(text string) (why string, ok bool) {
	s := skip.FindStringSubmatch(text)
	if s == nil || strings.Contains(text, "\n--- PASS: ") {
		return "", false
	}
	return strings.Join(strings.Fields(s[1]), " "), true
}

// try runs the test that must fail, and then without the mutation, where it must pass. An error
// says that the mutation was not noticed, or that something else went wrong.
func (m mutation) try(ctx context.Context, root, dir string, plain *unmutated) (seeds string, err error) {
	overlay, err := m.apply(root, dir)
	if err != nil {
		return "", err
	}
	text, err := m.test(ctx, root, overlay)
	switch {
	case err == nil && strings.Contains(text, "no tests to run"):
		return "", fmt.Errorf("%s has no test %s", m.pkg, m.run)
	case err == nil:
		if _, ok := skipped(text); ok {
			// The mutation may be why it skipped itself.
			if text, err := plain.test(ctx, root, m); err == nil {
				if why, ok := skipped(text); ok {
					return "", fmt.Errorf("%w: %s", errSkipped, why)
				}
			}
		}
		return "", fmt.Errorf("not caught: %s %s passes without this rule", m.pkg, m.run)
	case strings.Contains(text, "[build failed]") || strings.Contains(text, "[setup failed]"):
		return "", fmt.Errorf("it does not compile:\n%s", text)
	case !strings.Contains(text, "FAIL"):
		return "", fmt.Errorf("go test could not run: %w\n%s", err, text)
	case strings.Contains(text, "panic: test timed out"):
		return "", fmt.Errorf("the test hung instead of failing")
	case !failed(text):
		return "", fmt.Errorf("%w: no test failed, their process did:\n%s", errFailsAnyway, text)
	}
	if as, err := plain.test(ctx, root, m); err != nil {
		return "", fmt.Errorf("%w (%w):\n%s", errFailsAnyway, err, as[max(0, len(as)-3000):])
	}
	if s := seed.FindStringSubmatch(text); s != nil {
		return s[1], nil
	}
	return "-", nil
}

// TestMutations demands that each mutation is caught. MUTATIONS=all runs all of them,
// MUTATIONS=REGEXP those whose name matches, and nothing the ones of the core. MUTATIONS_SLICE=3/10
// takes every tenth of them, from the fourth on. MUTATIONS_FOR=10m begins none after that time, and
// begins at a random one, so that runs on a slow machine have all of them in the end.
func TestMutations(t *testing.T) {
	which := os.Getenv("MUTATIONS")
	switch which {
	case "":
		which = "^core-"
	case "all":
		which = ""
	}
	pick, err := regexp.Compile(which)
	if err != nil {
		t.Fatalf("MUTATIONS: %v", err)
	}
	turn, of := 0, 1
	if s := os.Getenv("MUTATIONS_SLICE"); s != "" {
		if _, err := fmt.Sscanf(s, "%d/%d", &turn, &of); err != nil || of < 1 || turn < 0 || turn >= of {
			t.Fatalf("MUTATIONS_SLICE=%q: use 3/10 for the fourth of ten slices", s)
		}
	}
	var todo []mutation
	matched := 0
	for _, m := range load(t) {
		mine := false
		if pick.MatchString(m.name) {
			mine = matched%of == turn
			matched++
		}
		if mine {
			todo = append(todo, m)
		} else if _, err := m.apply(root(t), t.TempDir()); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
	}
	if len(todo) == 0 {
		t.Fatalf("no mutation matches MUTATIONS=%q", which)
	}
	ctx := t.Context()
	if s := os.Getenv("MUTATIONS_FOR"); s != "" {
		long, err := time.ParseDuration(s)
		if err != nil {
			t.Fatalf("MUTATIONS_FOR: %v", err)
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, long)
		defer cancel()
		first := rand.N(len(todo))
		todo = append(todo[first:], todo[:first]...)
	}
	verdicts := tryAll(ctx, t, todo)
	if left := todo[len(verdicts):]; len(left) > 0 {
		t.Logf("no time for %d of %d mutations, from %s to %s", len(left), len(todo), left[0].name,
			left[len(left)-1].name)
	}
	if len(verdicts) == 0 {
		t.Fatal("no time for a single mutation")
	}
	caught, none := 0, 0
	table := &strings.Builder{}
	w := tabwriter.NewWriter(table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "mutation\tcaught by\tseeds\ttook\twhat")
	for _, v := range verdicts {
		by := strings.TrimSuffix(v.pkg, "/.") + " " + v.run
		switch {
		case v.err == nil:
			caught++
		case errors.Is(v.err, errSkipped):
			by = "NOT JUDGED"
			t.Logf("%s: %v", v.name, v.err)
			none++
		case errors.Is(v.err, errFailsAnyway):
			by = "NOT JUDGED"
			t.Errorf("%s (%s): not judged: %v", v.name, v.what, v.err)
			none++
		default:
			by = "NOT CAUGHT"
			t.Errorf("%s (%s): %v", v.name, v.what, v.err)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%.0f s\t%s\n", v.name, by, v.seeds, v.took.Seconds(), v.what)
	}
	w.Flush()
	t.Logf("%d of %d mutations caught, %d not judged on this machine\n%s", caught, len(verdicts), none, table)
}

// tryAll tries two at a time: most of the time goes into compiling. It begins none when ctx has
// ended, and returns the verdicts on those that it has tried.
func tryAll(ctx context.Context, t *testing.T, todo []mutation) []verdict {
	verdicts, tried := make([]verdict, len(todo)), 0
	plain := &unmutated{}
	var all sync.WaitGroup
	beside := make(chan struct{}, 2)
	for i, m := range todo {
		beside <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		tried++
		dir := t.TempDir()
		all.Go(func() {
			defer func() { <-beside }()
			start := time.Now()
			seeds, err := m.try(t.Context(), root(t), dir, plain)
			verdicts[i] = verdict{mutation: m, seeds: seeds, took: time.Since(start), err: err}
			fmt.Fprintf(os.Stderr, "%s: %s\n", m.name, verdicts[i])
		})
	}
	all.Wait()
	return verdicts[:tried]
}

// failAnyway is set for a run of TestThatFailsWhenAsked that is to fail.
const failAnyway = "MUTATIONS_FAIL_ANYWAY"

// TestThatFailsWhenAsked stands for a test that fails on some machine whatever the code is.
func TestThatFailsWhenAsked(t *testing.T) {
	if os.Getenv(failAnyway) != "" {
		t.Fatal("as asked")
	}
}

// The harness itself bites: a patch that changes nothing that counts is told as not caught, or as
// not judged where the test fails anyway, and one that does not compile or touches a test is
// refused.
func TestTheHarnessBites(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]bool{
		"=== RUN   TestA\n--- FAIL: TestA (0.00s)\nFAIL\n":                                           true,
		"=== RUN   TestA\n--- PASS: TestA (0.00s)\n=== RUN   TestB\npanic: x\nFAIL\n":                true,
		"=== RUN   TestA\n=== RUN   TestA/b\nFAIL\tpackage\t0.1s\n":                                  true,
		"=== RUN   TestA\n=== RUN   TestA/b\n    --- PASS: TestA/b\n--- PASS: TestA (0.00s)\nFAIL\n": false,
		"could not listen\nFAIL\tpackage\t0.1s\n":                                                    false,
	} {
		if got := failed(text); got != want {
			t.Errorf("%q: failed: %v", text, got)
		}
	}
	for text, want := range map[string]string{
		"=== RUN   TestA\n    a_test.go:1: no namespaces\n--- SKIP: TestA (0.00s)\nPASS\n": "a_test.go:1: no namespaces",
		"    a_test.go:1: x\n--- SKIP: TestA (0.00s)\n--- PASS: TestB (0.00s)\nPASS\n":     "",
		"=== RUN   TestB\n--- PASS: TestB (0.00s)\nPASS\n":                                 "",
	} {
		if why, _ := skipped(text); why != want {
			t.Errorf("%q: skipped for %q, want %q", text, why, want)
		}
	}
	write := func(name, text string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	diff := func(file, old, to string) string {
		return "--- a/" + file + "\n+++ b/" + file + "\n@@ -1,4 +1,4 @@\n-" + old + "\n+" + to + "\n \n import \"time\"\n \n"
	}
	const first = "package core"
	file := "internal/core/candidate.go"
	harmless := write("harmless.patch", "# What: nothing\n# Run: ./internal/core TestTimingRelations\n"+diff(file, first, first+" // the same"))
	broken := write("broken.patch", "# What: nothing\n# Run: ./internal/core TestTimingRelations\n"+diff(file, first, "package core; var x int = true"))
	anyway := write("anyway.patch",
		"# What: nothing\n# Run: ./test/mutations ^TestThatFailsWhenAsked$\n"+diff(file, first, first+" // the same"))
	t.Setenv(failAnyway, "yes")
	for path, want := range map[string]string{harmless: "not caught", broken: "does not compile",
		anyway: "without the mutation too"} {
		m, err := parse(path)
		if err != nil {
			t.Fatal(err)
		}
		_, err = m.try(t.Context(), root(t), t.TempDir(), &unmutated{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", filepath.Base(path), err, want)
		}
	}
	for path, want := range map[string]string{
		write("test.patch", "# What: x\n# Run: . T\n"+diff("root_test.go", "a", "b")):       "never what judges it",
		write("headless.patch", diff(file, first, first)):                                   "first two lines",
		write("empty.patch", "# What: x\n# Run: . T\n"):                                     "changes no file",
		write("judge.patch", "# What: x\n# Run: . T\n"+diff("test/sim/judge.go", "a", "b")): "never what judges it",
	} {
		if _, err := parse(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", filepath.Base(path), err, want)
		}
	}
}
