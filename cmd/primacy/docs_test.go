//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/programtest"
)

// readmeLines are the lines of the README and of the pages of locks, each with the test that types
// it; nil: TestTheReadme does.
var readmeLines = map[string]func(*testing.T){
	"go run ./cmd/primacy demo":                                    TestDemoEndsWellAndLeavesNothing,
	"go build -o bin/primacy ./cmd/primacy && PATH=$PWD/bin:$PATH": TestTheWholePathFromSource,
	// with the address of a server that is there
	"export PRIMACY_STORE=etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379": nil,
	"primacy run billing -- ./invoicer --verbose":                           nil,
	"go get github.com/primacy-go/primacy":                                  TestTheGoOfTheDocumentsCompiles,
	"primacy dev":                                                           TestDevIsAStoreForOthers,
	"primacy leader billing":                                                nil,
	"primacy status":                                                        nil,
	"primacy observe billing":                                               nil,
	`primacy resign billing --reason "new kernel"`:                          nil,
	"primacy transfer billing --to web-3":                                   nil,
	"primacy resign billing --token 1844":                                   TestATokenNamesTheOnlyTermThatIsAsked,
	"primacy drain web-2":                                                   nil,
	"primacy history billing":                                               nil,
	"primacy lock billing -- ./bill":                                        nil,
	"primacy lock -n billing -- ./bill":                                     nil,
	"primacy lock -w 30 billing -- ./bill":                                  nil,
	"primacy lock -s catalog -- ./report":                                   nil,
	"primacy lock --slots 3 exports -- ./export":                            nil,
	"primacy lock billing":                                                  nil,
	"primacy status billing":                                                nil,
	"primacy top":                                                           TestTopByKeys,
	"primacy dashboard":                                                     TestTheDashboard,
	"primacy run --shards 8 tenants -- ./worker":                            TestTheLinesOfShardsAndPauses,
	"primacy shards tenants":                                                TestTheLinesOfShardsAndPauses,
	`primacy pause billing/ --reason "new kernel"`:                          TestTheLinesOfShardsAndPauses,
	"primacy pause":                                                         TestTheLinesOfShardsAndPauses,
	"primacy resume billing/ --dry-run":                                     TestTheLinesOfShardsAndPauses,
	`primacy pause cron/ --for 3h --no-elections --reason "the database moves"`: TestTheLinesOfShardsAndPauses,
	`primacy cron nightly "0 3 * * *" -- ./report`:                              nil,
	"primacy cron -f cron.toml":                                                 nil,
	"primacy cron status":                                                       nil,
	"primacy serve":                                                             TestTheServePageHolds,
	"primacy doctor":                                                            TestDoctor,
	"primacy doctor --torture 60s":                                              TestTorture,
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

// TestWhatTheReadmeSaysIsTyped holds the README and the pages of locks to tests that run each line,
// and make to its targets.
func TestWhatTheReadmeSaysIsTyped(t *testing.T) {
	seen := map[string]bool{}
	for _, doc := range []string{"README.md", "docs/commands.md", "docs/locks.md", "docs/evidence.md"} {
		for _, l := range typedLines(t, filepath.Join("../..", doc)) {
			seen[l] = true
			_, known := readmeLines[l]
			switch {
			case strings.HasPrefix(l, "make "):
				cmd := exec.Command("make", append([]string{"-n"}, strings.Fields(l)[1:]...)...)
				cmd.Dir = "../.."
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%s: %q: %v: %s", doc, l, err, out)
				}
			case !known:
				t.Errorf("%s: nobody types %q", doc, l)
			}
		}
	}
	for l := range readmeLines {
		if !seen[l] {
			t.Errorf("%q is in no document any more", l)
		}
	}
}

// TestTheWholePathFromSource builds the program as the README does.
func TestTheWholePathFromSource(t *testing.T) {
	t.Parallel()
	out, err := programtest.Program()
	if err != nil {
		t.Fatal(err)
	}
	b, err := exec.Command(out, "--help").CombinedOutput()
	if err != nil || !strings.Contains(string(b), "primacy run") {
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
	cmd.Env, cmd.Dir = r.with("PRIMACY_ID="+node).env, r.dir
	cmd.Stdout, cmd.Stderr = out, out
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
	for _, name := range []string{"invoicer", "bill", "report", "export", "worker"} {
		script := "#!/bin/sh\necho \"" + name + " $PRIMACY_TOKEN\"\n"
		if name == "invoicer" || name == "worker" {
			script += "exec sleep 1000\n"
		}
		if err := os.WriteFile(filepath.Join(w.dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return &reader{w, map[string]bool{}}
}

// TestTheLinesOfShardsAndPauses types what docs/commands.md says of them.
func TestTheLinesOfShardsAndPauses(t *testing.T) {
	r := newReader(t)
	out, end := r.leaves("web-1", "primacy run --shards 8 tenants -- ./worker")
	r.eventually("a worker runs", func() bool { return strings.Contains(out.String(), "worker ") })
	r.shows("primacy shards tenants", "web-1")
	end(syscall.SIGTERM)
	r.types(`primacy pause billing/ --reason "new kernel"`, 0)
	r.types(`primacy pause cron/ --for 3h --no-elections --reason "the database moves"`, 0)
	r.shows("primacy pause", "new kernel", "the database moves")
	r.types("primacy resume billing/ --dry-run", 0)
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
	r.eventually("the next one leads", func() bool {
		return !strings.Contains(r.types("primacy leader billing", 0), "web-1")
	})
	if strings.Contains(r.types("primacy leader billing", 0), "web-3") { // the order in which they came in is not ours
		r.types("primacy transfer billing --to web-2", 0)
		_, end3 = r.leaves("web-3", run)
		r.shows("primacy leader billing", "web-2")
		r.shows("primacy status billing", "web-3")
	}
	r.types("primacy transfer billing --to web-3", 0)
	r.shows("primacy leader billing", "web-3")
	if code := end2(0); code != exitResigned {
		t.Errorf("the leader that handed over ended with %d", code)
	}
	r.types("primacy drain web-2", exitNo) // it has gone: nothing is led, and nobody is there
	r.eventually("the history", func() bool {
		out := r.types("primacy history billing", 0)
		return strings.Contains(out, "new kernel") && strings.Contains(out, "transferred") &&
			strings.Contains(out, "web-3")
	})
	end3(syscall.SIGTERM)
	r.eventually("the observer tells", func() bool { return strings.Contains(seen.String(), "web-3") })
	endObserver(syscall.SIGTERM)
	r.locks()
	r.cron()
	for l, by := range readmeLines {
		if by == nil && !r.typed[l] {
			t.Errorf("%q was not typed", l)
		}
	}
}

func (r *reader) locks() {
	_, end := r.leaves("holder", "primacy lock billing")
	r.shows("primacy status", "holder")
	r.types("primacy lock -n billing -- ./bill", exitNotAcquired)
	end(syscall.SIGTERM)
	for line, says := range map[string]string{"primacy lock billing -- ./bill": "bill",
		"primacy lock -n billing -- ./bill": "bill", "primacy lock -w 30 billing -- ./bill": "bill",
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

// snippet is what a block of Go in a document needs around it: what it is given, and the names that
// it declares. Elsewhere is where its like is compiled, if it needs a module that is not here.
type snippet struct{ given, declares, elsewhere string }

// What the blocks of a document need, in their order.
var snippets = map[string][]snippet{
	"README.md": {{}}, // a whole program
	"docs/client-go.md": {
		{given: "ctx context.Context, session *primacy.Session, runControllers func(context.Context)"},
		{}, // declarations
	},
	"docs/locks.md": {
		{given: "ctx context.Context, session *primacy.Session, bill func(context.Context, primacy.Token) error",
			declares: "err, term, terms"},
	},
	"docs/new-store.md": {{}, {}}, // whole files of one package
	"docs/postgres.md": {
		{given: "ctx context.Context", declares: "store, err"},
		{given: "ctx context.Context, pool *pgxpool.Pool, term *primacy.Term"},
	},
	"docs/redis.md": {{given: "ctx context.Context", declares: "store, err"}},
	"docs/shards.md": {
		{given: "ctx context.Context, store driver.Store, address string, " +
			"work func(context.Context, int, primacy.Token)"},
	},
	"docs/kubernetes.md": {
		{given: "config *rest.Config", declares: "store, err"},
		{}, // an import
		{elsewhere: "examples/operator"},
	},
	"docs/fencing.md": {
		{given: "ctx context.Context, client *clientv3.Client, store *etcdstore.Store, term *primacy.Term, " +
			"compares []clientv3.Cmp, ops []clientv3.Op", declares: "resp, err"},
		{given: "ctx context.Context, db *sql.DB, pgxTx pgx.Tx, term *primacy.Term", declares: "err"},
		{given: "ctx context.Context, client *redis.Client, term *primacy.Term, script string", declares: "v, err"},
		{given: "ctx context.Context, term *primacy.Term, url string, accounts, orders http.Handler, " +
			"server *http.Server", declares: "err"},
		{given: "ctx context.Context, path string, data []byte, term *primacy.Term", declares: "data, err"},
	},
}

// importsOf are the packages that blocks name, by that name.
var importsOf = map[string]string{
	"bytes": "bytes", "fmt": "fmt", "io": "io", "url": "net/url", "os": "os", "strings": "strings",
	"testing": "testing", "driver": "github.com/primacy-go/primacy/driver",
	"drivertest":    "github.com/primacy-go/primacy/driver/drivertest",
	"registerstore": "github.com/primacy-go/primacy/registerstore",
	"context":       "context", "log": "log", "sql": "database/sql", "http": "net/http", "time": "time",
	"primacy": "github.com/primacy-go/primacy", "open": "github.com/primacy-go/primacy/open",
	"etcdstore": "github.com/primacy-go/primacy/etcdstore", "fence": "github.com/primacy-go/primacy/fence",
	"etcdfence":  "github.com/primacy-go/primacy/fence/etcdfence",
	"sqlfence":   "github.com/primacy-go/primacy/fence/sqlfence",
	"redisfence": "github.com/primacy-go/primacy/fence/redisfence",
	"httpfence":  "github.com/primacy-go/primacy/fence/httpfence",
	"filefence":  "github.com/primacy-go/primacy/fence/filefence", "clientv3": "go.etcd.io/etcd/client/v3",
	"pgx": "github.com/jackc/pgx/v5", "redis": "github.com/redis/go-redis/v9",
	"pgxpool": "github.com/jackc/pgx/v5/pgxpool", "rest": "k8s.io/client-go/rest",
	"pgstore": "github.com/primacy-go/primacy/pgstore", "redisstore": "github.com/primacy-go/primacy/redisstore",
	"k8sstore": "github.com/primacy-go/primacy/k8sstore", "shards": "github.com/primacy-go/primacy/shards",
}

// goBlocks returns the blocks of Go in a document.
func goBlocks(t *testing.T, doc string) (blocks []string) {
	b, err := os.ReadFile(filepath.Join("../..", doc))
	if err != nil {
		t.Fatal(err)
	}
	for i, block := range strings.Split(string(b), "```") {
		if rest, ok := strings.CutPrefix(block, "go\n"); ok && i%2 == 1 {
			blocks = append(blocks, rest)
		}
	}
	return blocks
}

// source makes a program's file of a block. What a reader fills in (…) is filled with nothing.
func (s snippet) source(pkg, name, block string) string {
	block = strings.NewReplacer("{ … }", "{ return nil }", "\n…\n", "\n").Replace(block)
	body := fmt.Sprintf("func %s(%s) (done error) {\n{\n%s\n", name, s.given, block)
	for name := range strings.SplitSeq(s.declares, ", ") {
		if name != "" {
			body += "_ = " + name + "\n"
		}
	}
	body += "}\nreturn nil\n}\n"
	return "package " + pkg + "\n" + imports(body) + body
}

// imports returns the imports that code needs.
func imports(body string) (out string) {
	code := regexp.MustCompile(`//.*`).ReplaceAllString(body, "")
	for name, path := range importsOf {
		if regexp.MustCompile(`\b` + name + `\.`).MatchString(code) {
			out += fmt.Sprintf("import %s %q\n", name, path)
		}
	}
	return out
}

// TestTheGoOfTheDocumentsCompiles, as it stands there; the lines of the README also run.
func TestTheGoOfTheDocumentsCompiles(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	overlay := map[string]string{}
	put := func(pkg, file, text string) {
		real := filepath.Join(w.dir, strings.ReplaceAll(pkg, "/", "-")+"-"+file)
		if err := os.WriteFile(real, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		at, err := filepath.Abs(filepath.Join("..", pkg, file))
		if err != nil {
			t.Fatal(err)
		}
		overlay[at] = real
	}
	for doc, needs := range snippets {
		blocks := goBlocks(t, doc)
		if len(blocks) != len(needs) {
			t.Fatalf("%s has %d blocks of Go, and %d are known here", doc, len(blocks), len(needs))
		}
		for i, block := range blocks {
			if doc == "README.md" {
				put("fifteen", "main.go", block)
				continue
			}
			if strings.HasPrefix(block, "package ") {
				name := fmt.Sprintf("block%d.go", i)
				if strings.Contains(block, "*testing.T") {
					name = fmt.Sprintf("block%d_test.go", i)
				}
				head, body, _ := strings.Cut(block, "\n")
				put("indocs/whole", name, head+"\n"+imports(body)+body)
				continue
			}
			if needs[i].elsewhere != "" {
				continue
			}
			if strings.HasPrefix(block, "import ") {
				continue // upstreamtest changes exactly this line in etcd's own tests
			}
			if strings.HasPrefix(block, "type ") {
				put("indocs/declared", fmt.Sprint("block", i, ".go"), "package declared\n"+imports(block)+block)
				continue
			}
			page := regexp.MustCompile(`[/.-]`).ReplaceAllString(doc, "_")
			put("indocs", fmt.Sprint(page, i, ".go"), needs[i].source("indocs", fmt.Sprint("block", i, page), block))
		}
	}
	b, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(w.dir, "overlay.json")
	if err := os.WriteFile(file, b, 0o644); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(w.dir, "fifteen")
	for _, args := range [][]string{{"build", "-overlay", file, "./indocs"},
		{"list", "-export", "-test", "-overlay", file, "./indocs/whole", "./indocs/declared"},
		{"build", "-overlay", file, "-o", program, "./fifteen"}} {
		cmd := exec.Command("go", args...)
		cmd.Dir = ".."
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("go %v: %v: %s", args, err, out)
		}
	}
	readmeProgram(t, w, program)
}

// readmeProgram runs the program of the README on the store of `primacy dev`, as the README says.
func readmeProgram(t *testing.T, w *world, program string) {
	dev := w.start("dev", "--store", "embedded:"+filepath.Join(w.dir, "dev")).prints("\n")
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), strings.TrimSpace(dev.out.String()))
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	limit := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer limit.Stop()
	line, _ := bufio.NewReader(stderr).ReadString('\n')
	if !strings.Contains(line, "leads under token") {
		t.Errorf("the README's program says %q", line)
	}
	_ = cmd.Process.Signal(os.Interrupt)
	if err := cmd.Wait(); err != nil {
		t.Errorf("the README's program ended with %v", err)
	}
	dev.signal(syscall.SIGINT).ends(0)
}

// TestTheRunPageHolds types every command of docs/run.md.
func TestTheRunPageHolds(t *testing.T) {
	text, err := os.ReadFile("../../docs/run.md")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		`^(before\nleader under token \d+\nafter: exited\n)$`,
		`^billing/invoicer for 15000 ms at a time\nbilling/invoicer for 20000 ms at a time\n` +
			`also under billing/invoicer\n$`,
		`^candidate elected started exited resigned released finished $`,
		`^200\n$`,
	}
	blocks := regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(blocks) != len(want) {
		t.Fatalf("the page has %d blocks, this test knows %d", len(blocks), len(want))
	}
	w := newWorld(t).without("PRIMACY_TTL")
	for i, b := range blocks {
		c := exec.Command("sh", "-c", b[1])
		c.Env, c.Dir = w.env, w.dir
		out, err := c.CombinedOutput()
		if err != nil || !regexp.MustCompile(want[i]).Match(out) {
			t.Errorf("%s\n%v, printed\n%s", b[1], err, out)
		}
	}
	// Each flag that the page names is one of run's, or of pause's, of which the page speaks too.
	_, verb := verbOf(t, "run")
	_, pause := verbOf(t, "pause")
	for _, m := range regexp.MustCompile("`--([a-z-]+)").FindAllStringSubmatch(string(text), -1) {
		if verb.Flags().Lookup(m[1]) == nil && verb.InheritedFlags().Lookup(m[1]) == nil &&
			pause.Flags().Lookup(m[1]) == nil {
			t.Errorf("the page has --%s, run and pause have not", m[1])
		}
	}
	// What the page says of signals and reasons is what the program knows.
	for _, word := range []string{"renew_late", "standby_exited"} {
		if !strings.Contains(string(text), "`"+word+"`") {
			t.Errorf("the page lacks %s", word)
		}
	}
}

// TestTheServePageHolds types every command of docs/serve.md, in order, against a server as it
// starts by default.
func TestTheServePageHolds(t *testing.T) {
	text, err := os.ReadFile("../../docs/serve.md")
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for _, m := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		blocks = append(blocks, m[1])
	}
	want := [][]string{ // of each block but the first two and the campaign, in what it prints
		{`{"election":"billing","leads":true,"id":"web-1","token":"`, `"elections":[{"name":"billing"`,
			`"value":"{\"zone\":\"b\"}"`, `"reason":"leading"`, `{"event":"leader","state":{"name":"billing"`},
		{`{"token":"`, `{"token":"`},
		{`"name":"nightly"`, `"lease_ms":`, `{"token":"`},
		{`{"token":"1843"}`},
	}
	if len(blocks) != len(want)+3 || blocks[0] != "primacy serve\n" || !strings.Contains(blocks[2], "/campaign") {
		t.Fatalf("the page has %d blocks: %q", len(blocks), blocks)
	}
	w := newWorld(t).with("PRIMACY_TTL=20s")
	s := sideOn(w.start("serve"), filepath.Join(w.dir, "primacy", "primacy.sock"))
	s.ready()
	shell := func(script string) *exec.Cmd {
		// a busy machine prints nothing within the page's second
		c := exec.Command("sh", "-c", blocks[1]+strings.ReplaceAll(script, "--max-time 1 ", "--max-time 10 "))
		c.Env, c.Dir = w.env, w.dir
		return c
	}
	var out buffer
	lead := shell("exec " + blocks[2])
	lead.Stdout = &out
	if err := lead.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lead.Process.Kill(); _ = lead.Wait() })
	w.eventually("the page's candidate leads", func() bool {
		return strings.Contains(out.String(),
			`"event":"elected"`)
	})
	s.campaignFor("billing", "web-2") // whom the page hands over to
	s.awaitWaiting("billing")
	for i, block := range blocks[3:] {
		b, err := shell(block).CombinedOutput()
		if err != nil && !strings.Contains(block, "--max-time") {
			t.Errorf("%s: %v", block, err)
		}
		rest := string(b)
		for _, text := range want[i] {
			_, after, found := strings.Cut(rest, text)
			if !found {
				t.Errorf("%s\nprinted %s\nwithout %s", block, b, text)
			}
			rest = after
		}
		if strings.Contains(string(b), "urn:primacy:") {
			t.Errorf("%s\nprinted a problem: %s", block, b)
		}
	}
	w.eventually("the page's candidate is told", func() bool {
		return strings.Contains(out.String(),
			`"reason":"transferred"`)
	})
	for _, m := range regexp.MustCompile(`(?m)^    (\{"event".*)$`).FindAllStringSubmatch(string(text), -1) {
		for _, key := range regexp.MustCompile(`"([a-z_]+)":`).FindAllString(m[1], -1) {
			if !strings.Contains(out.String(), key) {
				t.Errorf("the page shows %s, the server printed %s", key, out.String())
			}
		}
	}
}
