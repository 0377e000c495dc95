//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/cron"
)

// cronFile writes a file of jobs and returns its path.
func (w *world) cronFile(text string) string {
	w.Helper()
	path := filepath.Join(w.dir, "jobs.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		w.Fatal(err)
	}
	return path
}

func cronWorld(t *testing.T) *world { return newWorld(t).with("PRIMACY_TTL=60s", "PRIMACY_LOOK=500ms") }

func (w *world) cronStatus(job string) cron.JobInfo {
	w.Helper()
	return decode[cron.JobInfo](w, w.start("cron", "status", job, "-o", "json").ends(0).out.String())
}

// Each of these is refused before anything is asked of a store: the URL leads nowhere.
func TestACronThatCannotWorkIsOneLine(t *testing.T) {
	onlyInVerify(t)
	w := cronWorld(t).with("PRIMACY_STORE=etcd://127.0.0.1:1")
	bad := w.cronFile("[jobs.x]\nschedule = \"* * * * *\"\ncommand = \"true\"\nretires = 3\n")
	good := filepath.Join(w.dir, "good.toml")
	if err := os.WriteFile(good, []byte("[jobs.x]\nschedule = \"* * * * *\"\ncommand = \"true\"\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"", exitUsage, "give -f FILE, or NAME SPEC -- COMMAND"},
		{"x", exitUsage, "give NAME, SPEC as one word in quotes"},
		{"x @daily true", exitUsage, "give NAME, SPEC as one word in quotes"},
		{"x @daily --", exitUsage, "give NAME, SPEC as one word in quotes"},
		{"x * * * * * -- true", exitUsage, "SPEC as one word in quotes"},
		{"x @often -- true", exitUsage, "cron x: schedule: "},
		{"a/b @daily -- true", exitUsage, "cron a/b: name: "},
		{"x @daily --overlap both -- true", exitUsage, `overlap: "both": use forbid, allow or replace`},
		{"x @daily --timezone Mars -- true", exitUsage, `timezone: unknown timezone "Mars"`},
		{"x @daily -- nosuchcommand", 127, "command not found: nosuchcommand"},
		{"x @daily -- /etc", 126, "command not executable: /etc"},
		{"x @daily -- true", exitUnreachable, "127.0.0.1:1"},
		{"-f " + bad, exitUsage, bad + `:4: [jobs.x] unknown key "retires"`},
		{"check -f " + bad, exitUsage, bad + `:4: [jobs.x] unknown key "retires"`},
		{"check", exitUsage, "give -f FILE"},
		{"-f " + w.dir + "/none.toml", exitUsage, "no such file"},
		{"-f " + good + " x @daily -- true", exitUsage, "not both"},
		{"-f " + good + " --max-running -1", exitUsage, "--max-running -1"},
		{"-f " + good + " --spread -1s", exitUsage, "--spread -1s"},
		{"-f " + good + " --look 0s", exitUsage, "--look 0s"},
		{"-f " + good, exitUnreachable, "127.0.0.1:1"},
		{"status", exitUnreachable, "127.0.0.1:1"},
	} {
		p := w.start(append([]string{"cron", "-q", "--timeout", "1s"}, strings.Fields(c.args)...)...)
		p.ends(c.code).complains(c.want).inOneLine()
	}
}

func TestACronFileIsReadAgain(t *testing.T) {
	w := cronWorld(t)
	const one = "[jobs.one]\nschedule = \"* * * * * *\"\ncommand = \"echo one\"\n"
	file := w.cronFile(one)
	p := w.start("cron", "-f", file).prints("one\n")
	w.cronFile(one + "[jobs.two]\nschedule = \"@every 1s\"\ncommand = \"echo two\"\nextra = 1\n")
	p.signal(syscall.SIGHUP).tells("not reloaded: " + file + ":7: [jobs.two] unknown key \"extra\"")
	before := strings.Count(p.out.String(), "one\n")
	w.eventually("the job that is still there runs", func() bool {
		return strings.Count(p.out.String(),
			"one\n") > before
	})
	w.cronFile("[jobs.two]\nschedule = \"@every 1s\"\ncommand = [\"echo\", \"two\"]\n")
	p.signal(syscall.SIGHUP).tells("reloaded, 1 job").prints("two\n")
	gone := strings.Count(p.out.String(), "one\n")
	time.Sleep(2200 * time.Millisecond)
	if n := strings.Count(p.out.String(), "one\n"); n > gone+1 {
		t.Errorf("a job that has left the file ran %d times more", n-gone)
	}
	p.signal(syscall.SIGTERM).ends(0)
}

// What signals ask for while the store is opened is done, also where the opening succeeds all the
// same; and one that comes too late for that is left for what follows.
func TestSignalsWhileACronOpensItsStore(t *testing.T) {
	for name, c := range map[string]struct {
		signals    []os.Signal
		end, again bool
	}{
		"none":              {nil, false, false},
		"read the file":     {[]os.Signal{syscall.SIGHUP}, false, true},
		"end":               {[]os.Signal{syscall.SIGTERM}, true, false},
		"both":              {[]os.Signal{syscall.SIGHUP, syscall.SIGHUP, syscall.SIGINT}, true, true},
		"end, and too late": {[]os.Signal{syscall.SIGTERM, syscall.SIGTERM}, true, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			tab := &crontab{signals: make(chan os.Signal, 16)}
			ended := false
			end, again := tab.whileOpening(t.Context(), func(ctx context.Context) {
				for _, s := range c.signals {
					tab.signals <- s
				}
				synctest.Wait()
				ended = ctx.Err() != nil
			})
			if end != c.end || again != c.again || ended != c.end {
				t.Errorf("%s: end %v, again %v; the opening ended: %v", name, end, again, ended)
			}
			if left := len(tab.signals); left != max(0, len(c.signals)-1) && name == "end, and too late" {
				t.Errorf("%s: %d signals are left", name, left)
			}
		})
	}
}

// The file is edited, and the process told so, while its store does not answer yet.
func TestACronFileIsReadAgainThoughTheStoreWasBeingOpened(t *testing.T) {
	w := cronWorld(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	w = w.with("PRIMACY_STORE=etcd://" + l.Addr().String() + "/" + w.prefix)
	file := w.cronFile("[jobs.one]\nschedule = \"@every 1s\"\ncommand = \"echo one\"\n")
	p := w.start("cron", "-f", file)
	first, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	w.cronFile("[jobs.two]\nschedule = \"@every 1s\"\ncommand = \"echo two\"\n")
	p.signal(syscall.SIGHUP)
	go w.relay(first)
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			go w.relay(in)
		}
	}()
	p.tells("reloaded, 1 job").prints("two\n").signal(syscall.SIGTERM).ends(0)
}

// relay joins a connection with etcd.
func (w *world) relay(in net.Conn) {
	defer in.Close()
	out, err := net.Dial("tcp", w.server.Addr())
	if err != nil {
		return
	}
	defer out.Close()
	go func() { _, _ = io.Copy(out, in) }()
	_, _ = io.Copy(in, out)
}

func TestACronEndsWhatRuns(t *testing.T) {
	w := cronWorld(t)
	const script = `trap 'echo told; exit 7' TERM; echo began; sleep 30 & wait`
	p := w.start("cron", "long", "@every 1s", "--stop-timeout", "20s", "--", "sh", "-c", script).prints("began")
	p.signal(syscall.SIGTERM).prints("told").ends(0)
	info := w.cronStatus("long")
	if l := info.Last; l == nil || l.Result != cron.Stopped || l.Code == nil || *l.Code != 7 || len(info.Running) != 0 {
		t.Errorf("the record says %+v", info.Last)
	}
	q := w.start("cron", "--drain", "drained", "@every 1s", "--", "sh", "-c",
		"echo began; until [ -e go ]; do sleep 0.05; done; echo done").prints("began")
	q.signal(syscall.SIGTERM).tells("waiting for 1 command")
	w.touch("go")
	q.ends(0).says("done")
	if l := w.cronStatus("drained").Last; l == nil || l.Result != cron.OK {
		t.Errorf("the record says %+v", l)
	}
	r := w.start("cron", "--drain", "hurried", "@every 1s", "--", "sh", "-c", "echo began; sleep 60").prints("began")
	r.signal(syscall.SIGTERM).tells("waiting for 1 command").signal(syscall.SIGINT).ends(0)
	if l := w.cronStatus("hurried").Last; l == nil || l.Result != cron.Stopped {
		t.Errorf("the record says %+v", l)
	}
}

func TestWhatACronCommandGets(t *testing.T) {
	w := cronWorld(t).with("PRIMACY_PREFIX=true")
	p := w.start("cron", "env", "@every 1s", "--run-timeout", "30s", "--", "sh", "-c",
		`env | grep ^PRIMACY_ | sort; cat; echo err >&2; exit 3`)
	p.tells(": failed").signal(syscall.SIGTERM).ends(0)
	want := regexp.MustCompile(`(?m)^\[env \d\d:\d\d:\d\d\] PRIMACY_CRON_ATTEMPT=1\n` +
		`.*PRIMACY_CRON_INSTANT=20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ\n.*PRIMACY_CRON_JOB=env\n` +
		`.*PRIMACY_CRON_RUN=[0-9a-f]{12}\n.*PRIMACY_ID=.+\n.*PRIMACY_NAME=cron/env\n` +
		`.*PRIMACY_STORE=etcd://.*\n.*PRIMACY_TOKEN=\d+\n.*PRIMACY_TTL=60s\n.*PRIMACY_TTL_MS=60000\n`)
	if !want.MatchString(p.out.String()) {
		t.Errorf("the environment is\n%s", p.out.String())
	}
	given := regexp.MustCompile(`PRIMACY_\S+`).FindAllString(p.out.String(), -1)
	if w := misspelt(rootCommand(&app{}), given); len(w) > 0 {
		t.Errorf("a command that calls primacy is told %q", w)
	}
	for _, none := range []string{"PRIMACY_RUN_TIMEOUT", "PRIMACY_LOOK", "PRIMACY_PREFIX"} {
		if strings.Contains(p.out.String(), none) {
			t.Errorf("%s was passed on", none)
		}
	}
	if r := w.cronStatus("env").Results; r[cron.Failed] == 0 {
		t.Errorf("the records say %v", r)
	}
}

func TestACronJobIsPausedAndAskedFor(t *testing.T) {
	w := cronWorld(t)
	p := w.start("cron", "often", "@every 1s", "--", "echo", "ran").prints("ran")
	q := w.start("cron", "rare", "@yearly", "--timezone", "Asia/Tokyo", "--", "echo", "extra").tells("counts from here")
	w.start("cron", "pause", "often").ends(0)
	w.start("cron", "pause", "often").ends(exitNo).complains("it is paused")
	if info := w.cronStatus("often"); !info.Paused || info.PausedBy == "" || info.Next != nil {
		t.Errorf("paused: %+v", info)
	}
	n := -1
	w.eventually("it has seen the pause, and nothing runs any more", func() bool {
		n = strings.Count(p.out.String(), "ran")
		time.Sleep(2500 * time.Millisecond)
		return strings.Count(p.out.String(), "ran") == n
	})
	w.start("cron", "resume", "often").ends(0)
	w.start("cron", "resume", "often").ends(exitNo).complains("it is not paused")
	w.eventually("it runs again", func() bool { return strings.Count(p.out.String(), "ran") > n })
	if r := w.cronStatus("often").Results; r[cron.Missed] != 0 {
		t.Errorf("what was due while it was paused: %v", r)
	}
	w.start("cron", "run", "rare").ends(0)
	q.prints("extra")
	w.start("cron", "run", "none").ends(exitNo).complains("no such job").inOneLine()
	w.start("cron", "history", "none").ends(exitNo).inOneLine()
	w.start("cron", "status").ends(0).says("often", "rare", "@yearly")
	runs := decode[[]cron.RunInfo](w, w.start("cron", "history", "often", "-o", "json", "--limit",
		"3").ends(0).out.String())
	if len(runs) < 2 || len(runs) > 3 || !runs[0].Instant.After(runs[1].Instant) {
		t.Errorf("history: %+v", runs)
	}
}

// The runner is killed: its command is ended, the run is lost, and the next attempt is another's.
func TestACronRunIsLostAndTriedAgain(t *testing.T) {
	w := newWorld(t).with("PRIMACY_TTL=20s", "PRIMACY_LOOK=500ms")
	// not each hour: the test may run as one begins
	file := w.cronFile("[jobs.x]\nschedule = \"@yearly\"\nretries = 1\nretry_delay = \"0s\"\n" +
		"command = 'echo $PRIMACY_CRON_ATTEMPT $$ >>log; test $PRIMACY_CRON_ATTEMPT = 2 || sleep 60'\ndir = \"" +
		w.dir + "\"\n")
	log := func() string { b, _ := os.ReadFile(filepath.Join(w.dir, "log")); return string(b) }
	p := w.start("cron", "-f", file).tells("counts from here")
	w.start("cron", "run", "x").ends(0)
	w.eventually("it runs", func() bool { return strings.HasPrefix(log(), "1 ") })
	q := w.start("cron", "-f", file)
	p.signal(syscall.SIGKILL)
	w.eventually("it is tried again", func() bool { return strings.Contains(log(), "\n2 ") })
	w.eventually("its end is told", func() bool {
		l := w.cronStatus("x").Last
		return l != nil && l.Attempt == 2 &&
			l.Result == cron.OK
	})
	runs := decode[[]cron.RunInfo](w, w.start("cron", "history", "x", "-o", "json").ends(0).out.String())
	if len(runs) != 2 || runs[1].Result != cron.Lost || runs[1].LostBy == "" || runs[0].By == runs[1].By {
		t.Errorf("history: %+v", runs)
	}
	if n := strings.Count(log(), "\n"); n != 2 {
		t.Errorf("the commands wrote %q", log())
	}
	q.signal(syscall.SIGTERM).ends(0)
}

// Every block of commands in the page is run as it stands there, but for longer: on a busy machine
// the first instant may come later than a reader would wait.
func TestTheCronPageIsTrue(t *testing.T) {
	onlyInVerify(t)
	w := cronWorld(t)
	page, err := os.ReadFile("../../docs/cron.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if len(blocks) < 4 || strings.Count(string(page), "```") != 2*len(blocks) {
		t.Fatalf("%d blocks", len(blocks))
	}
	timeouts := regexp.MustCompile(`\btimeout [0-9]+`)
	longer := func(timeout string) string {
		n, _ := strconv.Atoi(strings.TrimPrefix(timeout, "timeout "))
		return fmt.Sprint("timeout ", 3*n)
	}
	all := ""
	for _, b := range blocks {
		cmd := exec.Command("bash", "-eu", "-o", "pipefail", "-c", timeouts.ReplaceAllStringFunc(b[1], longer))
		cmd.Dir, cmd.Env = w.dir, w.env
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !(strings.Contains(b[1], "timeout") && errors.As(err, &exit) && exit.ExitCode() == 124) {
			t.Fatalf("%v:\n%s\n%s", err, b[1], out)
		}
		all += string(out)
	}
	for _, want := range []string{"*/2 * * * * *", "hello 20", "on one under", "tick\n", "ok", "paused",
		`"job": "hello"`} {
		if !strings.Contains(all, want) && !(want == "on one under" && strings.Contains(all, "on two under")) {
			t.Errorf("the commands of the page did not print %q:\n%s", want, all)
		}
	}
}

func TestTheExampleOfJobsIsRight(t *testing.T) {
	jobs, err := cron.Load("../../deploy/cron/jobs.toml")
	if err != nil || len(jobs) != 3 {
		t.Fatal(jobs, err)
	}
}

// What `primacy cron --status` answers, as an orchestrator and Prometheus ask it: the alert about
// cron jobs rests on it.
func TestCronStatusIsScraped(t *testing.T) {
	w := cronWorld(t)
	file := w.cronFile(`
[jobs.good]
schedule = "* * * * * *"
command = "true"
[jobs.bad]
schedule = "* * * * * *"
command = "exit 3"
[jobs.never]
schedule = "@yearly"
command = "true"
[jobs.deaf]
schedule = "* * * * * *"
stop_timeout = "4s"
command = "trap '' TERM; sleep 3; sleep 3"
`)
	sock := filepath.Join(w.dir, "sock")
	p := w.start("cron", "-f", file, "--status", "unix:"+sock)
	ask := func(path string) (int, string) {
		c := &http.Client{Timeout: limit, Transport: &http.Transport{DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", sock)
			}}}
		resp, err := c.Get("http://x" + path)
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		var page bytes.Buffer
		_, _ = page.ReadFrom(resp.Body)
		return resp.StatusCode, page.String()
	}
	runs := func(job, result string) float64 {
		_, page := ask("/metrics")
		m := regexp.MustCompile(`(?m)^primacy_cron_runs_total\{cronjob="` + job + `",result="` + result +
			`"\} (\S+)$`).FindStringSubmatch(page)
		if m == nil {
			return -1
		}
		n, _ := strconv.ParseFloat(m[1], 64)
		return n
	}
	w.eventually("runs are counted", func() bool { return runs("good", "ok") >= 2 && runs("bad", "failed") >= 2 })
	for _, c := range [][2]string{{"good", "failed"}, {"good", "missed"}, {"bad", "ok"}, {"never", "ok"},
		{"never", "failed"}, {"never", "missed"}} {
		if n := runs(c[0], c[1]); n != 0 {
			t.Errorf("%s %s is %v; it is to be there, and 0", c[0], c[1], n)
		}
	}
	for path, want := range map[string]int{"/livez": 200, "/readyz": 200, "/leader/good": 503, "/nothing": 404} {
		if got, text := ask(path); got != want {
			t.Errorf("%s: %d, want %d: %s", path, got, want, text)
		}
	}
	w.start("cron", "-f", file, "--status", "unix:"+sock).ends(exitUsage).complains("another process answers there")
	w.start("cron", "-f", file, "--status", "nonsense").ends(exitUsage).complains("give HOST:PORT, or unix:PATH")
	w.eventually("a long run", func() bool { return len(w.cronStatus("deaf").Running) > 0 })
	p.signal(syscall.SIGTERM)
	w.eventually("it says that it is stopping", func() bool {
		code,
			_ := ask("/readyz")
		return code == 503 || code == 0
	})
	p.ends(0)
}
