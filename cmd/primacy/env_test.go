//go:build linux

package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/primacy-go/primacy/internal/etcdtest"
)

// environ runs `env` in the term and returns what it shows.
func environ(w *world, args ...string) map[string]string {
	w.Helper()
	p := w.start(append(append([]string{"run", "-q"}, args...), "--", "n", "env", "-0")...).ends(0)
	got := map[string]string{}
	for kv := range strings.SplitSeq(strings.TrimSuffix(p.out.String(), "\x00"), "\x00") {
		name, value, _ := strings.Cut(kv, "=")
		if _, twice := got[name]; twice {
			w.Errorf("%s stands twice in the environment", name)
		}
		got[name] = value
	}
	return got
}

func TestTheCommandsEnvironmentIsExact(t *testing.T) {
	w := newWorld(t).with("MINE=a\nb=c", "EMPTY=",
		// Of the same names, and from elsewhere.
		"PRIMACY_TOKEN=1", "PRIMACY_NAME=outer", "PRIMACY_STATE_FILE=/outer", "PRIMACY_TTL_MS=1",
		`PRIMACY_HELD=[{"name":"n","id":"elsewhere","claim":"1"},{"name":"outer","id":"me","claim":"2"}]`,
		// For this process alone.
		"PRIMACY_WAIT=1m", "PRIMACY_VALUE=v", "PRIMACY_STOP_TIMEOUT=1s",
		// For this process and any below it.
		"PRIMACY_TIMEOUT=20s")
	got := environ(w, "--id", "me", "--ttl", "9s")
	token := got["PRIMACY_TOKEN"]
	around := `[{"name":"n","id":"elsewhere","claim":"1"},{"name":"outer","id":"me","claim":"2"},{"name":"n","id":"me","claim":"` + token + `"}]`
	want := map[string]string{
		"PRIMACY_NAME": "n", "PRIMACY_ID": "me", "PRIMACY_TOKEN": token, "PRIMACY_TTL_MS": "9000",
		"PRIMACY_TIMEOUT": "20s", "PRIMACY_ROLE": "leader",
		"PRIMACY_STORE": w.store, "PRIMACY_STATE_FILE": got["PRIMACY_STATE_FILE"], "PRIMACY_HELD": around,
	}
	for _, kv := range w.env {
		if name, value, _ := strings.Cut(kv, "="); !strings.HasPrefix(name, "PRIMACY_") {
			want[name] = value
		}
	}
	if !maps.Equal(got, want) {
		for _, name := range slices.Sorted(maps.Keys(got)) {
			if v, ok := want[name]; !ok || v != got[name] {
				t.Errorf("%s=%q, want %q", name, got[name], v)
			}
			delete(want, name)
		}
		t.Errorf("missing: %q", want)
	}
	var n uint64
	if _, err := fmt.Sscan(token, &n); err != nil || n < 2 || fmt.Sprint(n) != token {
		t.Errorf("the token is %q", token)
	}
	if f := got["PRIMACY_STATE_FILE"]; filepath.Dir(filepath.Dir(f)) != w.dir {
		t.Errorf("the state file is %q", f)
	} else if _, err := os.Stat(f); !os.IsNotExist(err) {
		t.Errorf("the state file is still there after the term: %v", err)
	}
	if again := environ(w); again["PRIMACY_TOKEN"] == token {
		t.Errorf("the next term has the token %s too", token)
	}
}

func TestTheTokenIsTheOneInTheStore(t *testing.T) {
	w := newWorld(t)
	p := w.start("run", "-q", "n", "sh", "-c", "echo $PRIMACY_TOKEN; sleep 1000").prints("\n")
	if got, want := strings.TrimSpace(p.out.String()), w.awaitLine("n", 1)[0].CreateRevision; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestARunInARunSeesItsOwnTerm(t *testing.T) {
	w := newWorld(t)
	script := `echo "$PRIMACY_NAME $PRIMACY_ID $PRIMACY_TOKEN $PRIMACY_STATE_FILE"
		primacy leader $PRIMACY_NAME --valid && primacy leader $PRIMACY_NAME --is-me && echo yes`
	p := w.start("run", "-q", "--id", "o", "outer", "sh", "-c", script+`
		primacy run -q --id i inner sh -c "$1"`, "sh", script).ends(0)
	lines := strings.Split(strings.TrimSpace(p.out.String()), "\n")
	if len(lines) != 4 || lines[1] != "yes" || lines[3] != "yes" {
		t.Fatalf("got %q", lines)
	}
	outer, inner := strings.Fields(lines[0]), strings.Fields(lines[2])
	if outer[0] != "outer" || outer[1] != "o" || inner[0] != "inner" || inner[1] != "i" || outer[2] == inner[2] ||
		outer[3] == inner[3] {
		t.Errorf("outer %q, inner %q", outer, inner)
	}
}

// The password must be nowhere but in what the user gave us.
func TestThePasswordIsNowhere(t *testing.T) {
	t.Parallel()
	shared.start(t)
	// Each log-in costs a tenth of a second of computing otherwise, and seconds on a busy machine.
	server := etcdtest.Start(t, etcdtest.Options{Args: []string{"--bcrypt-cost", "4"}})
	w := newWorldOn(t, server)
	const canary = "SWORDFISH/?@:%"
	const written = "SWORDFISH%2F%3F%40%3A%25"
	mark := func(where, text string) {
		t.Helper()
		if strings.Contains(text, "SWORDF") {
			t.Errorf("the password is in %s: %q", where, clip(text))
		}
	}
	w.post("/v3/auth/user/add", map[string]string{"name": "root", "password": canary}, nil)
	w.post("/v3/auth/user/grant", map[string]string{"user": "root", "role": "root"}, nil)
	w.post("/v3/auth/enable", struct{}{}, nil)
	url := func(pw string) string { return "etcd://root:" + pw + "@" + server.Addr() + "/" + w.prefix }

	// Where it is right: a run, seen from outside and from inside.
	in := w.with("PRIMACY_STORE=" + url(written))
	p := in.start("run", "-v", "n", "sh", "-c",
		"cat /proc/self/environ /proc/$PPID/environ /proc/$PPID/cmdline $PRIMACY_STATE_FILE; echo up; sleep 1000").prints("up")
	for _, link := range w.processes() {
		cmdline, _ := os.ReadFile(filepath.Join(filepath.Dir(link), "cmdline"))
		mark(link, string(cmdline))
		environ, _ := os.ReadFile(filepath.Join(filepath.Dir(link), "environ"))
		if filepath.Base(filepath.Dir(link)) != fmt.Sprint(p.cmd.Process.Pid) { // there the user has put it himself
			mark(link+"'s environment", string(environ))
		}
	}
	if n := len(w.processes()); n < 3 {
		t.Errorf("looked at %d processes, want supervisor, guardian, command", n)
	}
	for _, file := range []string{"cmdline", "environ"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", p.guardian(), file))
		if err != nil {
			t.Error(err)
		}
		mark("the guardian's "+file, string(text))
	}
	for _, args := range [][]string{{"status"}, {"leader", "n"}, {"status", "-o", "json"},
		{"resign", "--reason", "x", "n"}} {
		q := in.start(append([]string{"-v"}, args...)...).ends(0)
		mark(q.String(), q.out.String()+q.err.String())
	}
	p.ends(exitResigned)
	mark("the output of run -v", p.out.String()+p.err.String())

	// The guardian of a killed one has it too, and nobody else: the lease would live for a minute.
	p = in.start("run", "-v", "--ttl", "60s", "n", "sh", "-c", "echo up; exec sleep 1000").prints("up")
	p.signal(syscall.SIGKILL)
	in.start("run", "--wait", "30s", "n", "true").ends(0)
	<-p.exited
	mark("what is left of run -v", p.out.String()+p.err.String())

	// Where it is wrong, or cannot be read.
	for _, u := range []string{url("SWORDFISH"), url(canary), url(written + "x"),
		strings.Replace(url(written), "root:", "nobody:", 1)} {
		for _, args := range [][]string{{"run", "n", "true"}, {"status"}} {
			q := w.start(append([]string{"-v", "--timeout", "5s", "--store", u}, args...)...)
			if code := q.wait(); code != exitUnreachable && code != exitUsage {
				t.Errorf("%v: exit %d", q, code)
			}
			mark("an error", q.out.String()+q.err.String())
			q.complains("primacy: ")
		}
	}
	q := w.start("--timeout", "5s", "--store", url("SWORDFISH"), "run", "n", "true").ends(exitUnreachable).inOneLine()
	q.complains(server.Addr(), "authentication failed")
	if q.took > 12e9 {
		t.Errorf("a wrong password took %v", q.took)
	}
	// From a file, the URL has nothing to hide, and the command gets it.
	file := filepath.Join(w.dir, "password")
	if err := os.WriteFile(file, []byte(canary+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	store := "etcd://root@" + server.Addr() + "/" + w.prefix + "?password-file=" + file
	if got := environ(w, "--store", store)["PRIMACY_STORE"]; got != store {
		t.Errorf("the command's PRIMACY_STORE is %q, want %q", got, store)
	}
}
