package main

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/primacy-go/primacy/cmd/internal/embedded"
	pgconfig "github.com/primacy-go/primacy/cmd/internal/postgres/config"
	"github.com/primacy-go/primacy/etcdstore"
	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/pgtest"
	"github.com/primacy-go/primacy/internal/servertest"
)

// TestPostgresCheck: what is missing is told, and nothing is changed. check runs PostgreSQL's
// programs, as the user that is to own the data.
func TestPostgresCheck(t *testing.T) {
	w := postgresWorld(t).without("PGSERVICE")
	etcd := etcdtest.Start(t, etcdtest.Options{})
	st, err := etcdstore.Open(t.Context(), etcdstore.Config{Endpoints: []string{etcd.Addr()}})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	for key, text := range map[string]string{
		pgconfig.Key(pgconfig.Namespace, "bad"):  `{"postgresql": {"parameters": {"nosuch": 1}}}`,
		pgconfig.Key(pgconfig.Namespace, "none"): `{"synchronous_mode": "maybe"}`,
	} {
		if _, _, err := st.Raw().Put(t.Context(), key, []byte(text), 0); err != nil {
			t.Fatal(err)
		}
	}
	onEtcd := func(cluster string) []string {
		return []string{"embedded:DIR/store", "etcd://" + etcd.Addr(), `"c"`, `"` + cluster + `"`}
	}
	const pass, login = "*:*:*:r:secret\n", "SWORDFISH"
	for name, test := range map[string]struct {
		file []string // pairs: what of the file is replaced, and by what
		pass string   // empty: there is no such file
		mode os.FileMode
		want []string // lines
	}{
		"well": {nil, pass, 0o600, []string{"ok    release: PostgreSQL ", "ok    socket directory: DIR",
			"ok    passfile: DIR/pass", "ok    store: DIR/store is not there yet",
			"ok    configuration: none is known"}},
		"well on etcd": {onEtcd("new"), pass, 0o600, []string{"ok    cluster: new: not there yet"}},
		"a password": {append([]string{"embedded:DIR/store", "etcd://root:" + login + "@" + etcd.Addr()},
			onEtcd("new")[2:]...), pass, 0o600, []string{"ok    store: etcd://" + etcd.Addr() + "\n"}},
		"no passfile":   {nil, "", 0, []string{"FAIL  passfile: stat DIR/pass: no such file"}},
		"open passfile": {nil, pass, 0o644, []string{"FAIL  passfile: others can read DIR/pass"}},
		"another's":     {nil, "*:*:*:x:secret\n", 0o600, []string{"FAIL  passfile: DIR/pass has no line for user r"}},
		"no socket directory": {[]string{`socket = "DIR"`, `socket = "DIR/run"`}, pass, 0o600,
			[]string{"FAIL  socket directory: stat DIR/run: no such file or directory: make it"}},
		"another's socket directory": {[]string{`socket = "DIR"`, `socket = "/"`}, pass, 0o600,
			[]string{"FAIL  socket directory: /: we may not write there"}},
		"long path": {[]string{`socket = "DIR"`, `socket = "DIR/` + strings.Repeat("x", 100) + `"`}, pass, 0o600,
			[]string{"FAIL  server: the path of the socket DIR/xxx", "ok    configuration: "}},
		"callbacks": {[]string{"[server]", "[callbacks]\non_start = [\"sh\", \"-c\"]\non_stop = [\"DIR/pass\"]\n" +
			"on_reload = [\"DIR/vip\"]\n[server]"}, pass, 0o600,
			[]string{"ok    callback on_start: /", "FAIL  callback on_stop: exec: \"DIR/pass\": permission denied\n",
				"FAIL  callback on_reload: exec: \"DIR/vip\": stat DIR/vip: no such file or directory\n"}},
		"api": {[]string{"[server]", "[api]\nlisten = \"127.0.0.1:" + servertest.FreePort(t) + "\"\n[server]"}, pass,
			0o600, []string{", for HAProxy and curl: patronictl and vip-manager read etcd"}},
		"first": {[]string{"[server]", "[first]\nparameters = {nosuch = 1}\n[server]"}, pass, 0o600,
			[]string{`FAIL  configuration: PostgreSQL `, "unrecognized configuration parameter"}},
		"shared": {onEtcd("bad"), pass, 0o600,
			[]string{`FAIL  configuration: PostgreSQL `, "unrecognized configuration parameter"}},
		"no configuration": {onEtcd("none"), pass, 0o600, []string{"FAIL  configuration: /service/none/config: sync"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(w.dir, strings.ReplaceAll(name, " ", "-"))
			here := strings.NewReplacer("DIR", dir)
			text := here.Replace(strings.NewReplacer(test.file...).Replace(fileOfAMember("DIR", "embedded:DIR/store")))
			text = strings.Replace(text, dir+"/bin", pgtest.Bin(t), 1)
			if err := errors.Join(os.Mkdir(dir, 0o755),
				os.WriteFile(filepath.Join(dir, "pg.toml"), []byte(text), 0o644)); err != nil {
				t.Fatal(err)
			}
			if test.pass != "" {
				if err := os.WriteFile(filepath.Join(dir, "pass"), []byte(test.pass), test.mode); err != nil {
					t.Fatal(err)
				}
			}
			c := exec.Command("/proc/self/exe", "postgres", "check", "-f", "pg.toml")
			c.Dir, c.Env = dir, w.env
			before := given(t, dir)
			if os.Getuid() == 0 {
				us, err := ordinaryUser()
				if err != nil {
					t.Fatal(err)
				}
				for _, path := range append(before, dir) {
					if err := os.Chown(path, int(us.Uid), int(us.Gid)); err != nil {
						t.Fatal(err)
					}
				}
				c.SysProcAttr = droppedAttr(us.Credential)
			}
			out, err := c.CombinedOutput()
			fails := false
			for _, want := range test.want {
				fails = fails || strings.HasPrefix(want, "FAIL")
				if !strings.Contains(string(out), here.Replace(want)) {
					t.Errorf("no %q in\n%s", here.Replace(want), out)
				}
			}
			if strings.Contains(string(out), login) {
				t.Errorf("the store's password is told:\n%s", out)
			}
			if fails != (err != nil) || fails != strings.Contains(string(out), "FAIL") {
				t.Errorf("%v\n%s", err, out)
			}
			if after := given(t, dir); !slices.Equal(after, before) {
				t.Errorf("check has made %q of %q", after, before)
			}
		})
	}
}

// given returns the files in a directory.
func given(t *testing.T, dir string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		all = append(all, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestPostgresCheckAsksAnEmbeddedStoreThatIsHosted: one that nobody hosts is not asked, for to host
// it changes its files.
func TestPostgresCheckAsksAnEmbeddedStoreThatIsHosted(t *testing.T) {
	dir := t.TempDir()
	store, file := filepath.Join(dir, "store"), filepath.Join(dir, "pg.toml")
	if err := os.WriteFile(file, []byte(fileOfAMember(dir, "embedded:"+store)), 0o600); err != nil {
		t.Fatal(err)
	}
	check := func(want string) {
		t.Helper()
		var out, errs bytes.Buffer
		run(t.Context(), []string{"postgres", "check", "-f", file}, nil, &out, &errs)
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s%s", want, out.String(), errs.String())
		}
	}
	node, err := embedded.Open(t.Context(), store, embedded.Options{})
	if err != nil {
		t.Fatal(err)
	}
	check("ok    cluster: c: not there yet")
	if err := node.Close(); err != nil {
		t.Fatal(err)
	}
	check("ok    store: " + store + ": no member runs, so it is not asked")
}
