//go:build linux

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/etcdtest"
)

// Each of these is refused before anything is asked of a store: the URL leads nowhere.
func TestWhatCannotWorkIsOneLineAndExit125(t *testing.T) {
	w := newWorld(t).with("PRIMACY_STORE=etcd://127.0.0.1:1")
	long := strings.Repeat("x", 10_000)
	for i, c := range []struct {
		args []string
		env  string
		want string
	}{
		{[]string{"--store", "mysql://x", "status"}, "",
			`--store: not a store URL: unknown scheme "mysql": use etcd://`},
		{[]string{"--store", "mysql://x", "status"}, "", "or embedded:DIR"},
		{[]string{"--store", "nonsense", "status"}, "", "it has no scheme: use etcd://HOST:2379"},
		{[]string{"status"}, "PRIMACY_STORE=nonsense", "it has no scheme: use etcd://HOST:2379"},
		{[]string{"--store", "etcd://", "status"}, "", "it names no host: use etcd://HOST:2379"},
		{[]string{"--store", "etcd:///prefix", "run", "n", "true"}, "", "it names no host"},
		{[]string{"--store", "etcd://h:port", "run", "n", "true"}, "", "is not a port"},
		{[]string{"--store", "etcds://h?ca=/proc/nosuch", "status"}, "", "ca: open /proc/nosuch: no such file"},

		{[]string{"run", "--ttl", "0", "n", "true"}, "", "--ttl 0s: use a positive duration"},
		{[]string{"run", "--ttl", "-3s", "n", "true"}, "", "--ttl -3s: use a positive duration"},
		{[]string{"run", "--ttl", "garbage", "n", "true"}, "", `"garbage" for "--ttl"`},
		{[]string{"run", "--ttl", "10", "n", "true"}, "", `10 what? write 10s`},
		{[]string{"run", "n", "true"}, "PRIMACY_TTL=2.5", `PRIMACY_TTL="2.5"`},
		{[]string{"run", "n", "true"}, "PRIMACY_TTL=2.5", "2.5 what? write 2.5s"},
		{[]string{"run", "n", "--wait", "soon", "true"}, "", "give seconds, such as 2.5, or a duration"},
		{[]string{"run", "n", "true"}, "PRIMACY_TTL=garbage", `PRIMACY_TTL="garbage"`},
		{[]string{"run", "n", "true"}, "PRIMACY_WAIT=soon", `PRIMACY_WAIT="soon"`},
		{[]string{"status"}, "PRIMACY_QUIET=perhaps", `PRIMACY_QUIET="perhaps"`},
		{[]string{"--timeout", "0", "status"}, "", "--timeout 0s: use a positive duration"},
		{[]string{"-o", "xml", "status"}, "", `--output "xml": use table, json or ndjson`},
		{[]string{"run", "--wait", "-1s", "n", "true"}, "", "must not be negative"},
		{[]string{"run", "--nosuch", "n", "true"}, "", "unknown flag: --nosuch"},
		{[]string{"run", "--tll", "5s", "n", "true"}, "", "unknown flag: --tll; did you mean --ttl?"},
		{[]string{"run", "n", "--tll", "5s", "--", "true"}, "", "unknown flag: --tll; did you mean --ttl?"},
		{[]string{"run", "-ttl", "5s", "n", "true"}, "", "unknown flag: -ttl; did you mean --ttl?"},
		{[]string{"history", "n", "--limits", "3"}, "", "unknown flag: --limits; did you mean --limit?"},
		{[]string{"run", "--id", "", "n", "true"}, "", "--id is empty: leave it out to have HOST-PID-XXXX"},
		{[]string{"run", "n", "--ttl", "0", "--", "true"}, "", "--ttl 0s: use a positive duration"},
		{[]string{"run", "n", "--ttl", "5s"}, "", "run n: give a COMMAND"},
		{[]string{"run", "n", "--ttl", "5s", "--"}, "", "run n: give a COMMAND"},

		{[]string{"run", "", "true"}, "", "the name is empty"},
		{[]string{"leader", ""}, "", "the name is empty"},
		{[]string{"resign", ""}, "", "the name is empty"},
		{[]string{"observe", "n", ""}, "", "the name is empty"},
		{[]string{"status", ""}, "", "the name is empty"},
		{[]string{"run", long, "true"}, "", "the name has 10000 bytes, more than 255"},
		{[]string{"status", long}, "", "the name has 10000 bytes, more than 255"},
		{[]string{"run", "a\nb", "true"}, "", `"a\nb" has the control character U+000A at byte 1`},
		{[]string{"leader", "a\x1b[31mb"}, "", `has the control character U+001B at byte 1`},
		{[]string{"run", "a\xffb", "true"}, "", `the name "a\xffb" is not valid UTF-8`},
		{[]string{"resign", "a\xffb"}, "", `is not valid UTF-8`},
		{[]string{"transfer", ""}, "", "the name is empty"},
		{[]string{"drain", ""}, "", "give one HOST, or the ID of one candidate"},
		{[]string{"lock", ""}, "", "the name is empty"},
		{[]string{"resign", "--reason", long, "n"}, "", "--reason has 10000 bytes"},

		{[]string{"run"}, "", "give a NAME and a COMMAND"},
		{[]string{"run", "n"}, "", "give a COMMAND"},
		{[]string{"run", "n", "--"}, "", "give a COMMAND"},
		{[]string{"leader"}, "", "give one NAME, not 0"},
		{[]string{"leader", "a", "b"}, "", "give one NAME, not 2"},
		{[]string{"leader", "--is-me", "n"}, "", "--is-me needs --id or PRIMACY_ID"},
		{[]string{"leader", "--is-me", "--is", "x", "n"}, "", "is-me"},
		{[]string{"leader", "--valid", "n"}, "", "PRIMACY_STATE_FILE is not set"},
		{[]string{"observe"}, "", "give at least one NAME"},
		{[]string{"status", "a", "b"}, "", "at most 1"},
		{[]string{"nosuch"}, "", `unknown command "nosuch"`},
		{[]string{"statsu"}, "", `unknown command "statsu" for "primacy"; did you mean status?`},
		{[]string{"staus"}, "", `unknown command "staus" for "primacy"; did you mean status?`},
		{[]string{"cron", "staus"}, "", "did you mean cron status?"},
		{[]string{"help", "staus"}, "", `help: unknown command "staus" for "primacy"; did you mean status?`},
		{[]string{"run", "--shards", "0", "n", "true"}, "", "--shards 0: use 1 to 10000"},
		{[]string{"run", "--ttl", "5s", "--stop-timeout", "10s", "n", "true"}, "",
			"--stop-timeout 10s is too long for --ttl 5s: use at most 2.5s"},
		{[]string{"demo", "-o", "json"}, "", "demo: leave out --output"},
		{[]string{"demo", "--ttl", "5s"}, "", "demo: leave out --ttl"},
		{[]string{"schema"}, "PRIMACY_STORE=embedded:", "schema: give --store postgres://"},
		{[]string{"run", "n", "true"}, "XDG_RUNTIME_DIR=/dev/null", "set XDG_RUNTIME_DIR to a folder of your own"},
		{[]string{"dev", "--store", "etcd://h"}, "", "it must be embedded:DIR"},
	} {
		if few(4, i) {
			continue
		}
		p := w.with(c.env).start(c.args...).ends(exitUsage).inOneLineBut(len(long)).complains(c.want)
		if p.took > prompt {
			t.Errorf("%v took %v", p, p.took)
		}
	}
}

// inOneLineBut is inOneLine, and what was given must not come back at length.
func (p *prog) inOneLineBut(n int) *prog {
	p.Helper()
	if len(p.err.String()) >= n {
		p.Errorf("%v: stderr has %d bytes", p, len(p.err.String()))
	}
	return p.inOneLine()
}

// These the store must say, so it must be reached.
func TestWhatTheStoreCannotKeepIsOneLineAndExit125(t *testing.T) {
	w := newWorld(t)
	for ttl, want := range map[string]string{"1ms": "ttl 1ms: etcd 3.7.3 keeps leases of 300ms to 5m0s",
		"8760h": "ttl 8760h0m0s: etcd"} {
		w.start("run", "--ttl", ttl, "n", "true").ends(exitUsage).inOneLine().complains(want)
		w.with("PRIMACY_TTL="+ttl).start("run", "n", "true").ends(exitUsage).inOneLine().complains(want)
	}
	w.start("run", "--id", "a\x1bb", "n", "true").ends(exitUsage).inOneLine().complains("the id",
		"control character U+001B")
	w.start("run", "--id", strings.Repeat("x", 300), "n",
		"true").ends(exitUsage).complains("the id has 300 bytes, more than 255")
	w.start("run", "--value", strings.Repeat("x", 100_000), "n", "true").ends(exitUsage).inOneLine().
		complains("the value has 100000 bytes, more than 4096")
	w.start("run", "--stop-timeout", "1h", "n", "true").ends(exitUsage).inOneLine().
		complains("--stop-timeout 1h0m0s is too long")
	if got := w.line("n"); len(got) > 0 {
		t.Errorf("%q stands in the line", got[0].Key)
	}
}

// What cannot go through argv or an environment goes to run itself: 2 MB, and a NUL.
func TestWhatNoShellCanPassOn(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"run", "--value", strings.Repeat("x", 2<<20), "n", "true"},
			"the value has 2097152 bytes, more than 4096"},
		{[]string{"run", "a\x00b", "true"}, `"a\x00b" has the control character U+0000 at byte 1`},
		{[]string{"run", "--id", "a\x00b", "n", "true"}, `the id "a\x00b" has the control character U+0000`},
		{[]string{"run", "n", "tr\x00ue"}, "command not found"},
	} {
		var stderr bytes.Buffer
		code := run(context.Background(), append([]string{"--store", w.store}, c.args...), strings.NewReader(""),
			io.Discard, &stderr)
		if want := map[bool]int{true: 127, false: exitUsage}[strings.HasPrefix(c.want, "command")]; code != want ||
			strings.Count(stderr.String(), "\n") != 1 || !strings.Contains(stderr.String(), c.want) ||
			stderr.Len() > 300 {
			t.Errorf("exit %d with %q, want %d with %q", code, clip(stderr.String()), want, c.want)
		}
	}
}

func TestOddNamesThatAreNames(t *testing.T) {
	w := newWorld(t)
	for i, name := range []string{"..", ".", "/", "a/b", "a//b/", "/etc/passwd", "a b", "ü–🙂", "%2F", "-", "'\"$HOME`",
		strings.Repeat("x", 255)} {
		if few(4, i) {
			continue
		}
		p := w.start("run", "--", name, "sh", "-c", `printf %s "$PRIMACY_NAME"`).ends(0)
		if p.out.String() != name {
			t.Errorf("got the name %q, want %q", p.out.String(), name)
		}
	}
}

func TestAClosedPortIs121AndNamed(t *testing.T) {
	w := newWorld(t)
	var started, quiet []*prog
	for _, args := range [][]string{{"run", "n", "true"}, {"status"}, {"leader", "n"}, {"observe", "n"},
		{"resign", "n"}, {"transfer", "n"}, {"drain", "x"}, {"lock", "n", "true"}} {
		args = append([]string{"--store", "etcd://127.0.0.1:1", "--timeout", "4s"}, args...)
		started = append(started, w.start(args...))
		quiet = append(quiet, w.start(append([]string{"-q", "--timeout", "100ms"}, args...)...))
	}
	for _, p := range started {
		p.ends(exitUnreachable).complains("store unreachable for 4s: ", "127.0.0.1:1", "refused",
			"waiting for the store for up to 4s (--timeout)")
		if p.took < 4*time.Second || p.took > prompt {
			t.Errorf("%v took %v", p, p.took)
		}
		if strings.Count(p.err.String(), "\n") != 2 { // that it waits, once, and how it ended
			t.Errorf("%v: %q", p, p.err.String())
		}
	}
	for _, p := range quiet {
		p.ends(exitUnreachable).inOneLine()
	}
}

func TestASilentStoreIsGivenUpWithinTheTimeout(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	hole := newHole(w)
	for _, user := range []string{"", "root:secret@"} {
		for _, args := range [][]string{{"run", "n", "true"}, {"leader", "n"}} {
			p := w.start(append([]string{"--store", "etcd://" + user + hole.Addr(), "--timeout", "1500ms"}, args...)...)
			p.ends(exitUnreachable).inOneLine().complains(hole.Addr(), "1.5s")
			if p.took < 1500*time.Millisecond || p.took > prompt {
				t.Errorf("%v took %v, want 1.5 s", p, p.took)
			}
			if strings.Contains(p.err.String(), "secret") {
				t.Errorf("the password is in %q", p.err.String())
			}
		}
	}
}

func TestAStoreThatFallsSilentIsGivenUpWithinTheTimeout(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	proxy := etcdtest.NewProxy(t, w.server.Addr())
	w.start("run", "--id", "me", "n", "sleep", "1000").tells("leads n")
	o := w.start("observe", "-o", "ndjson", "--store", "etcd://"+proxy.Addr()+"/"+w.prefix, "n").prints(`"id":"me"`)
	proxy.Hold()
	o.prints(`"error":"`) // and the last that was known with it
	lines := strings.Split(strings.TrimSpace(o.out.String()), "\n")
	if last := decode[stateJSON](w, lines[len(lines)-1]); last.Leader == nil || last.Leader.ID != "me" {
		t.Errorf("while the store is silent: %+v", last)
	}
}

func TestExpiredCertificateIs121AndSaysSo(t *testing.T) {
	t.Parallel()
	w := plainWorld(t)
	cert := etcdtest.NewCert(t, time.Now().Add(-time.Hour))
	// The test's own questions do not look at the certificate, so it starts.
	server := etcdtest.Start(t, etcdtest.Options{TLS: cert})
	ca := certOf(w, server)
	refused := func(store string, args ...string) *prog {
		t.Helper()
		p := w.start(append([]string{"--timeout", "20s", "--store", store}, args...)...)
		return p.ends(exitUnreachable).inOneLine().complains(server.Addr())
	}
	for _, user := range []string{"", "root:SWORDFISH@"} {
		p := refused("etcds://"+user+server.Addr()+"?ca="+ca, "run", "n", "true").complains("certificate has expired")
		if strings.Contains(p.err.String(), "SWORDFISH") {
			t.Errorf("the password is in %q", p.err.String())
		}
	}
	refused("etcds://"+server.Addr(), "status").complains("certificate")
	refused("etcd://"+server.Addr(), "status")
}

func TestEmbeddedStoresThatCannotBeAreOneLine(t *testing.T) {
	onlyInVerify(t)
	t.Parallel()
	w := plainWorld(t)
	file := filepath.Join(w.dir, "file")
	full := filepath.Join(w.dir, "full")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(full, "etcd"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(full, "letter"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"/proc/nosuch", file, full, filepath.Join(file, "below")} {
		p := w.start("--store", "embedded:"+dir, "run", "n", "true")
		p.ends(exitUnreachable).inOneLine().complains("embedded store", dir)
	}
	if b, err := os.ReadFile(filepath.Join(full, "letter")); err != nil || string(b) != "mine" {
		t.Errorf("somebody's file: %q, %v", b, err)
	}
}

// certOf returns a file with the server's certificate, as it shows it.
func certOf(w *world, server *etcdtest.Server) string {
	w.Helper()
	conn, err := tls.Dial("tcp", server.Addr(), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		w.Fatal(err)
	}
	defer conn.Close()
	file := filepath.Join(w.dir, "ca.pem")
	b := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: conn.ConnectionState().PeerCertificates[0].Raw})
	if err := os.WriteFile(file, b, 0o600); err != nil {
		w.Fatal(err)
	}
	return file
}
