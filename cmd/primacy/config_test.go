package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// verbOf returns a program and one of its verbs, as they are before anything is parsed.
func verbOf(t testing.TB, name string) (*app, *cobra.Command) {
	t.Helper()
	a := &app{stdin: strings.NewReader(""), stdout: io.Discard, stderr: &bytes.Buffer{}}
	verb, _, err := rootCommand(a).Find([]string{name})
	if err != nil {
		t.Fatal(err)
	}
	return a, verb
}

// prepared returns what the verb's flags are after the file, the environment and the flags.
func prepared(t *testing.T, verb, file string, env map[string]string, flags ...string) (*app, *cobra.Command, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "p.toml")
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	for k, v := range env {
		t.Setenv(k, v)
	}
	a, c := verbOf(t, verb)
	if err := c.ParseFlags(append([]string{"--config", path}, flags...)); err != nil {
		t.Fatal(err)
	}
	err := a.prepare(c)
	if err != nil {
		err = &exitError{125, err}
	}
	return a, c, err
}

// Flag before environment before the verb's table before what stands above all tables before the
// default.
func TestWhatIsSaidWhereCounts(t *testing.T) {
	const file = "ttl = \"11s\"\nquiet = true\n[run]\nttl = \"12s\"\nwait = \"3s\"\npriority = 4\n" +
		"[lock]\nttl = \"13s\"\nslots = 2\n"
	for _, c := range []struct {
		verb  string
		file  string
		env   map[string]string
		flags []string
		flag  string
		want  string
	}{
		{"run", "", nil, nil, "ttl", "10s"},
		{"status", file, nil, nil, "ttl", "11s"},
		{"run", file, nil, nil, "ttl", "12s"},
		{"lock", file, nil, nil, "ttl", "13s"},
		{"lock", file, nil, nil, "slots", "2"},
		{"run", file, nil, nil, "priority", "4"},
		{"run", file, nil, nil, "quiet", "true"},
		{"run", file, map[string]string{"PRIMACY_TTL": "14s"}, nil, "ttl", "14s"},
		{"run", file, map[string]string{"PRIMACY_TTL": ""}, nil, "ttl", "12s"}, // empty is not set
		{"run", file, map[string]string{"PRIMACY_TTL": "14s"}, []string{"--ttl", "15s"}, "ttl", "15s"},
		{"run", file, nil, []string{"--ttl", "15s"}, "ttl", "15s"},
		{"run", file, map[string]string{"PRIMACY_WAIT": "5s"}, nil, "wait", "5s"},
		// the default, given by hand
		{"run", "[run]\nttl = \"12s\"\n", map[string]string{"PRIMACY_TTL": "14s"}, []string{"--ttl=10s"}, "ttl",
			"10s"},
		{"run", "[run]\npriority = 3\nttl = '7s'", nil, nil, "priority", "3"},
		{"run", "run.ttl = '8s'", nil, nil, "ttl", "8s"},
		{"run", "run = { ttl = '9s' }\nttl = '7s'", nil, nil, "ttl", "9s"},
		{"run", "[run]\nttl = '9s'\n[lock]\n", nil, nil, "ttl", "9s"},
	} {
		_, verb, err := prepared(t, c.verb, c.file, c.env, c.flags...)
		if err != nil {
			t.Errorf("%+v: %v", c, err)
		} else if got := verb.Flags().Lookup(c.flag).Value.String(); got != c.want {
			t.Errorf("%+v: got %s", c, got)
		}
		for k := range c.env {
			t.Setenv(k, "")
		}
	}
}

func TestNameAndCommandFromTheFile(t *testing.T) {
	const file = "[run]\nname = \"billing/invoicer\"\ncommand = [\"./invoicer\", \"--port\", 8080]\n"
	for _, c := range []struct {
		file string
		args []string
		want string // name and command
	}{
		{file, nil, "billing/invoicer ./invoicer --port 8080"},
		{file, []string{"other"}, "other ./invoicer --port 8080"},
		{file, []string{"other", "--", "true"}, "other true"},
		{"[run]\nname = \"n\"", nil, "error: run n: give a COMMAND"},
		{"[run]\ncommand = [\"true\"]", nil, "error: give a NAME"},
		{"", nil, "error: give a NAME and a COMMAND"},
		{file, []string{"other", "--"}, "error: run other: give a COMMAND"},
		{"[run]\nname = \"a\\u0001\"\ncommand = [\"true\"]", nil,
			`error: primacy: invalid: the name "a\x01" has the control character U+0001 at byte 1`},
	} {
		a, _, err := prepared(t, "run", c.file, nil)
		if err != nil {
			t.Fatal(err)
		}
		r := &runner{app: a}
		got := "error: "
		if err := r.named(c.args, false); err != nil {
			got += err.Error()
		} else {
			got = r.name + " " + strings.Join(r.args, " ")
		}
		if got != c.want {
			t.Errorf("%q %q: got %q, want %q", c.file, c.args, got, c.want)
		}
	}
}

func TestWhatIsWrongWithAFile(t *testing.T) {
	for file, want := range map[string]string{
		"ttl = \"1s\"\nstroe = \"etcd://h\"\n": "p.toml:2: unknown key stroe; did you mean store?",
		"[run]\non_lost = \"exit\"\n":          "p.toml:2: unknown key run.on_lost; did you mean on-lost?",
		"[runn]\nttl = \"1s\"\n":               "p.toml:1: unknown key runn; did you mean run?",
		"[lock]\n\nstandby = \"x\"\n":          "p.toml:3: unknown key lock.standby",
		"[status]\nwait = \"1s\"\n":            "p.toml:2: unknown key status.wait",
		"xyzzy = 1":                            "p.toml:1: unknown key xyzzy",
		"help = true":                          "p.toml:1: unknown key help",
		"config = \"x\"":                       "p.toml:1: unknown key config",
		"ttl = \"soon\"":                       "p.toml:1: ttl: give a duration, such as 10s",
		"\n[run]\npriority = \"high\"":         "p.toml:3: run.priority: strconv.ParseInt",
		"ttl = 1979-05-27T07:32:00Z": "p.toml:1: ttl must be a string, a number, true or false, " +
			"or a list of these",
		"ttl = [\"1s\", \"2s\"]":     "p.toml:1: ttl must be one value",
		"[ttl]\nx = 1":               "p.toml:1: ttl must be a string",
		"run = 5":                    "p.toml:1: run must be a table: [run]",
		"[run]\nname = [\"a\"]":      "p.toml:2: run.name must be one string",
		"ttl = \"1s\"\nttl = \"2s\"": "p.toml:2: ",
		"ttl = ":                     "p.toml:1: ",
		"\x00":                       "p.toml:1: ",
		"\"\" = 1":                   "p.toml:1: unknown key \"\"",
		"[[run]]\nttl = \"1s\"":      "p.toml:1: run must be a table",
		"timeout = \"-1s\"":          "--timeout -1s: use a positive duration",
		"store = \"\"\"\nx\"\"\"\n\n\nfoo = \"ttl = 1\"": "p.toml:5: unknown key foo",
	} {
		_, _, err := prepared(t, "run", file, nil)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Count(oneLine(err), "\n") > 0 {
			t.Errorf("%q: got %v, want %q", file, err, want)
		}
	}
	a, verb := verbOf(t, "run")
	for path, want := range map[string]string{"/proc/nosuch/file": "no such file", t.TempDir(): "is a directory",
		"/dev/zero": "larger than"} {
		a.configPath, a.config = path, nil
		if err := a.loadConfig(verb); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "--config") {
			t.Errorf("%s: got %v", path, err)
		}
	}
}

// A password that everybody may read is told of, and not shown.
func TestAPasswordInAFileForAll(t *testing.T) {
	for _, c := range []struct {
		file string
		mode os.FileMode
		want string
	}{
		{"store = \"etcd://u:SWORDFISH@h\"", 0o644, "holds a password (store)"},
		{"store = \"etcd://u:SWORDFISH@h\"", 0o640, ""},
		{"store = \"etcd://u@h?password-file=/x\"", 0o644, ""},
		{"[run]\nstore = \"etcd://u:SWORDFISH@h\"", 0o604, "holds a password (run.store)"},
	} {
		path := filepath.Join(t.TempDir(), "p.toml")
		if err := os.WriteFile(path, []byte(c.file), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, c.mode); err != nil {
			t.Fatal(err)
		}
		a, verb := verbOf(t, "run")
		a.configPath = path
		if err := a.prepare(verb); err != nil {
			t.Fatal(err)
		}
		got := a.stderr.(*bytes.Buffer).String()
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) || strings.Contains(got, "SWORD") {
			t.Errorf("%+v: said %q", c, got)
		}
	}
}

// Whatever stands in a file: it is taken or refused in one line, soon, and nothing of it panics.
func FuzzConfig(f *testing.F) {
	for _, s := range []string{"ttl = \"1s\"\n[run]\nname = \"n\"\ncommand = [\"a\"]\n", "[run.x]\ny=1",
		"a.b.c = [[1],[2]]", "[[run]]", "run = {ttl='1s', name=3}", "\"run\".'ttl' = 1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, verb := verbOf(t, "run")
		began := time.Now()
		c, err := parseConfig("f.toml", text, verb)
		if err == nil {
			a.config = c
			err = c.set(verb.Flags(), verb.Flags().Lookup("ttl"))
		}
		if err != nil && (strings.Contains(oneLine(err), "\n") || utf8.ValidString(text) &&
			!utf8.ValidString(err.Error())) {
			t.Errorf("%q", err)
		}
		if d := time.Since(began); d > 10*time.Second {
			t.Errorf("it took %v", d)
		}
	})
}
