//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Flags behind NAME are ours as long as no COMMAND has begun; a COMMAND's own are its own.
func TestFlagsBehindTheName(t *testing.T) {
	w := newWorld(t)
	show := `printf '%s ' "$PRIMACY_TTL_MS" "$PRIMACY_ID" "$@"`
	for i, c := range []struct{ args, want string }{
		{"run x --ttl 50s --id a -- sh -c SHOW sh --ttl 7s -v", "50000 a --ttl 7s -v "},
		{"run x --ttl 50s --id a sh -c SHOW sh --ttl 7s --id b", "50000 a --ttl 7s --id b "},
		{"run x --ttl=50s --id=a sh -c SHOW sh --help -- -q", "50000 a --help -- -q "},
		{"run --id a x --ttl 50s sh -c SHOW sh", "50000 a "},
		{"run x --quiet --id a --ttl 50s sh -c SHOW sh -q", "50000 a -q "},
		{"run --id a --ttl 50s -- x sh -c SHOW sh --id b", "50000 a --id b "},
		{"run --id a --ttl 50s x -- sh -c SHOW sh -- x", "50000 a -- x "},
		{"lock x --ttl 50s --id a -n -- sh -c SHOW sh -n", "50000 a -n "},
		{"lock x -n -w1 sh -c SHOW", "ERROR -n and -w exclude each other"},
		{"lock x --id a --ttl 50s -s sh -c SHOW sh -c x", "50000 a -c x "},
	} {
		if few(3, i) {
			continue
		}
		args := strings.Fields(c.args)
		for i := range args {
			if args[i] == "SHOW" {
				args[i] = show
			}
		}
		if text, isError := strings.CutPrefix(c.want, "ERROR "); isError {
			w.start(args...).ends(exitUsage).inOneLine().complains(text)
		} else if p := w.start(args...).ends(0); p.out.String() != c.want {
			t.Errorf("%s: got %q, want %q", c.args, p.out.String(), c.want)
		}
	}
	if p := w.with("SHELL=/bin/sh").start("lock", "x", "-c", "echo through").ends(0); p.out.String() != "through\n" {
		t.Errorf("-c behind NAME: %q", p.out.String())
	}
	w.start("run", "x", "--help").ends(0).says("Usage:\n  primacy run NAME")
	// A flag behind NAME goes before the environment, as one before it does.
	p := w.with("PRIMACY_ID=env").start("run", "x", "--id", "flag", "--", "sh", "-c", `echo "$PRIMACY_ID"`).ends(0)
	if p.out.String() != "flag\n" {
		t.Errorf("got %q", p.out.String())
	}
}

func TestAVariableThatIsMisspeltIsTold(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	for env, want := range map[string]string{
		"PRIMACY_TLL=5s":               "PRIMACY_TLL is set, and means nothing here; did you mean PRIMACY_TTL?",
		"PRIMACY_STROE=x":              "did you mean PRIMACY_STORE?",
		"PRIMACY_TIME_OUT=x":           "did you mean PRIMACY_TIMEOUT?",
		"PRIMACY_TTL_MS=5000":          "",
		"PRIMACY_SLOTS=many":           "", // of lock, and not of this verb
		"PRIMACY_PORT=tcp://10.0.0.1":  "", // of Kubernetes, for a service called primacy
		"PRIMACY_SERVICE_HOST=10.0.01": "",
		"PRIMACY_FLEET_COLOUR=green":   "", // somebody's own
		"PRIMACY_TLL=":                 "PRIMACY_TLL is set",
	} {
		p := w.with(env).start("status").ends(0)
		if got := p.err.String(); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", env, got, want)
		}
		w.with(env).start("-q", "status").ends(0)
	}
}

// The Go runtime puts /dev/null where a standard output was closed, so the command cannot find out.
func TestAClosedOutputIsTold(t *testing.T) {
	w := newWorld(t)
	const told = "standard output is closed"
	for redirect, want := range map[string]bool{">&-": true, ">/dev/null": false, "": false, "| cat": false} {
		p := w.startShell("primacy run n true " + redirect).ends(0)
		if strings.Contains(p.err.String(), told) != want {
			t.Errorf("%q: stderr %q", redirect, p.err.String())
		}
	}
}

// A page of help that nobody can have got is none. But who opens /dev/null for reading and writing
// wants no answer, as Python's subprocess.DEVNULL does: it looks as if standard output were closed.
func TestAPageThatIsLostIsAnError(t *testing.T) {
	w := newWorld(t)
	for line, want := range map[string]string{
		"primacy help >/dev/full":    "standard output: write /dev/stdout: no space left on device",
		"primacy lock -h >/dev/full": "standard output: write /dev/stdout: no space left on device",
	} {
		w.startShell(line).ends(exitUsage).inOneLine().complains(want)
	}
	w.startShell("primacy status >/dev/null && primacy help completion >/dev/null").ends(0)
	w.startShell("primacy status 1<>/dev/null").ends(0)
}

// startShell runs a line of a shell.
func (w *world) startShell(line string) *prog {
	w.Helper()
	script := filepath.Join(w.dir, "primacy-line")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"+line+"\n"), 0o700); err != nil {
		w.Fatal(err)
	}
	return w.start("dev", "--store", "embedded:"+filepath.Join(w.dir, "unused"), "--", script)
}

// Events that cannot be written are told, at once and with their number at the end.
func TestEventsThatAreLostAreTold(t *testing.T) {
	w := newWorld(t)
	p := w.start("run", "--events", "/dev/full", "n", "sleep", "1000").tells("leads n")
	p.tells("warning: --events /dev/full: no space left on device: events are lost")
	p.signal(syscall.SIGTERM).ends(128 + 15)
	if !strings.Contains(p.err.String(), "events were lost") || strings.Count(p.err.String(), "no space left") != 1 {
		t.Errorf("%q", p.err.String())
	}
	if p := w.start("run", "-q", "--events", "/dev/full", "n", "true").ends(0); p.err.String() != "" {
		t.Errorf("with -q: %q", p.err.String())
	}
}
