package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pgconfig "github.com/primacy-go/primacy/cmd/internal/postgres/config"
	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	pgserver "github.com/primacy-go/primacy/cmd/internal/postgres/server"
	"github.com/primacy-go/primacy/etcdstore"
)

// TestAdoptMakesAFile: `adopt --patroni` writes a file, and passwords into files that nobody else
// reads; none over another.
func TestAdoptMakesAFile(t *testing.T) {
	w := plainWorld(t)
	yml := filepath.Join(w.dir, "patroni.yml")
	text := "scope: orders\nname: pg1\netcd3: {host: 10.0.0.1}\npostgresql:\n  listen: 10.0.0.1:5432\n" +
		"  connect_address: 10.0.0.1:5432\n  data_dir: /data\n  bin_dir: /bin\n  pg_hba: [host all all all md5]\n" +
		"  authentication: {replication: {username: r, password: geheim}}\n" +
		"  parameters: {unix_socket_directories: /run/pg}\n"
	if err := os.WriteFile(yml, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	w.start("postgres", "adopt", "--patroni", yml).ends(0).says(`store = "etcd://10.0.0.1:2379"`, `name = "pg1"`).
		complains("passwords: give --secrets DIR", "postgresql.pg_hba: ")
	p := w.start("postgres", "adopt", "--patroni", yml, "--secrets", w.dir).ends(0).says(w.dir + "/pgpass")
	if strings.Contains(p.out.String()+p.err.String(), "geheim") {
		t.Error("it tells the password")
	}
	path := filepath.Join(w.dir, "pgpass")
	for range 2 { // one that others read is theirs no more when it is written again
		got, err := os.ReadFile(path)
		info, err2 := os.Stat(path)
		if err != nil || err2 != nil || string(got) != "*:*:*:r:geheim\n" || info.Mode().Perm() != 0o600 {
			t.Errorf("the passfile: %q, %v, %v", got, info, err)
		}
		if err := os.Chmod(path, 0o644); err != nil {
			t.Fatal(err)
		}
		w.start("postgres", "adopt", "--patroni", yml, "--secrets", w.dir).ends(0)
	}
	if err := os.WriteFile(path, []byte("another"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.start("postgres", "adopt", "--patroni", yml, "--secrets", w.dir).ends(exitUsage).inOneLine().
		complains("is there, with other content")
	w.start("postgres", "adopt", "--patroni", filepath.Join(w.dir, "none")).ends(exitUsage).inOneLine()
	w.start("postgres", "adopt").ends(exitUsage).inOneLine().complains("--patroni FILE")
	w.start("postgres", "adopt", "-f", "x", "--patroni", yml).ends(exitUsage).inOneLine()
	w.start("postgres", "leave").ends(exitUsage).inOneLine().complains("-f FILE")
}

// TestLayout: Debian keeps the files of settings elsewhere, and primacy's server reads them in the
// data directory. What is there already stays.
func TestLayout(t *testing.T) {
	data, etc := t.TempDir(), t.TempDir()
	put := func(path, text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(filepath.Join(etc, "pg_hba.conf"), "hba")
	put(filepath.Join(etc, "pg_ident.conf"), "ident")
	put(filepath.Join(data, "pg_ident.conf"), "ident")
	m := pgserver.Manner{ConfigFile: filepath.Join(etc, "it's.conf"), HBAFile: filepath.Join(etc, "pg_hba.conf"),
		IdentFile: filepath.Join(etc, "pg_ident.conf")}
	for range 2 {
		if err := layout(data, m); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{"pg_hba.conf": "hba", "pg_ident.conf": "ident",
		"postgresql.conf": "include '" + etc + "/it''s.conf'"} {
		text, err := os.ReadFile(filepath.Join(data, name))
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: %q, %v, want %q", name, text, err, want)
		}
	}
	put(filepath.Join(data, "pg_hba.conf"), "initdb's own, which the server does not use")
	if err := layout(data, m); err == nil || !strings.Contains(err.Error(), filepath.Join(data, "pg_hba.conf")) {
		t.Errorf("%v, want a refusal: primacy's server would use it", err)
	}
}

// TestAKilledTakeoverGoesOn: the member that takes a database over writes the key initialize, and
// ends Patroni's pause then. One that was killed in between or after that does the same again. Once
// a Patroni has its key back, it has to pause first.
func TestAKilledTakeoverGoesOn(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	a := &app{stdout: io.Discard, stderr: io.Discard, store: w.store, ttl: 30 * time.Second, timeout: time.Minute}
	c := &cluster{app: a, name: filepath.Base(w.dir), namespace: "/service"}
	r, done, err := c.open(t.Context(), "postgres/"+c.name)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	dir := "/service/" + c.name + "/"
	put := func(key, value string) {
		t.Helper()
		k := etcdstore.BesideWrite{Key: dir + key, Value: []byte(value)}
		if _, err := r.keeper.Raw().WriteBeside(t.Context(), "", 0, k); err != nil {
			t.Fatal(err)
		}
	}
	take := func(system, refused string) {
		t.Helper()
		p := former{r, "pg1", system, 0}
		before, err := p.keys(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		err = p.takeOver(t.Context(), core.AdoptedPrimary)
		switch {
		case refused == "" && err != nil, refused != "" && (err == nil || !strings.Contains(err.Error(), refused)):
			t.Errorf("%q is taken over: %v, want %q", system, err, refused)
		}
		keys, err := p.keys(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		initialize, config := "0"+system, "{}"
		if refused != "" {
			initialize, config = before["initialize"], before["config"]
		}
		if keys["initialize"] != initialize || keys["config"] != config {
			t.Errorf("then initialize is %q and config %q, want %q and %q", keys["initialize"], keys["config"],
				initialize, config)
		}
	}
	put("initialize", "7")
	put("config", `{}`)
	take("7", "not paused by Patroni")
	put("config", `{"pause":true}`)
	take("8", "is database system 7")
	take("7", "")
	take("7", "") // both were written
	put("config", `{"pause":true}`)
	take("7", "") // only initialize was
	take("8", "is database system 07")
	put("initialize", "7")
	take("7", "not paused by Patroni")
}

// absent is a store from which the shared configuration is gone.
type absent struct{ wrote string }

func (s *absent) Get(context.Context, string) ([]byte, uint64, error) { return nil, 0, nil }
func (s *absent) Put(_ context.Context, _ string, value []byte, _ uint64) (uint64, bool, error) {
	s.wrote = string(value)
	return 1, true, nil
}

// TestNoPauseWithoutAConfiguration: after `patronictl remove` there is none that could say it. A
// new one is not made of it.
func TestNoPauseWithoutAConfiguration(t *testing.T) {
	for _, on := range []bool{true, false} {
		s := &absent{}
		p := former{reached: &reached{shared: pgconfig.Of(s, "/service/orders/config")}}
		if there, err := p.pause(t.Context(), on); there || err != nil || s.wrote != "" {
			t.Errorf("pause %v: %v, %v, and %q was written", on, there, err, s.wrote)
		}
	}
}

// TestATakeoverThatIsTakenBackHoldsUpNoCommit: the server was started with a name that no standby
// has. What somebody else has set stays.
func TestATakeoverThatIsTakenBackHoldsUpNoCommit(t *testing.T) {
	data := t.TempDir()
	path := filepath.Join(data, "postgresql.auto.conf")
	if err := freeCommits(data); err != nil {
		t.Errorf("without the file: %v", err)
	}
	const rest = "# Do not edit this file manually!\nwork_mem = '8MB'\nprimary_conninfo = ''\n"
	const theirs = rest + "synchronous_standby_names = 'ANY 1 (pg2)'"
	ours := rest + "synchronous_standby_names = '" + pgserver.Sync{}.String() + "'\n"
	for text, want := range map[string]string{ours: rest, theirs: theirs} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		err := freeCommits(data)
		if got, readErr := os.ReadFile(path); err != nil || readErr != nil || string(got) != want {
			t.Errorf("%q became %q: %v, %v", text, got, err, readErr)
		}
	}
}
