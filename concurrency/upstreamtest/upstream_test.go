package upstreamtest

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

const (
	theirs = "go.etcd.io/etcd/client/v3/concurrency"
	ours   = "github.com/primacy-go/primacy/concurrency"
	etcd   = "go.etcd.io/etcd"
)

// TestUpstream runs etcd's tests. It needs a minute and more, so it runs where it is asked for.
func TestUpstream(t *testing.T) {
	count := os.Getenv("UPSTREAM")
	if count == "" {
		t.Skip("UPSTREAM=1 runs etcd's own tests against this package; see doc.go")
	}
	versions := "v3.7.3,v3.6.16"
	if v := os.Getenv("UPSTREAM_ETCD"); v != "" {
		versions = v
	}
	for version := range strings.SplitSeq(versions, ",") {
		t.Run(version, func(t *testing.T) { upstream(t, version, count) })
	}
}

func upstream(t *testing.T, version, count string) {
	w := prepare(t, version)
	for _, run := range []struct{ name, pkg, pattern string }{
		{"concurrency", "./integration/clientv3/concurrency", "."},
		{"elections, locks and STM", "./integration", "^Test(Election|V3Election|V3Lock|STM)"},
		{"recipes", "./integration/clientv3/experimental/recipes", "."},
		{"sessions while connections fail", "./integration/clientv3/lease", "^TestV3LeaseFailureOverlap$"},
	} {
		t.Run(run.name, func(t *testing.T) { w.test(t, run.pkg, "-count="+count, "-run", run.pattern) })
	}
	t.Run("etcdctl and HTTP", func(t *testing.T) {
		bin := w.build(t)
		w.test(t, "./e2e", "-count="+count, "-run",
			"^Test(CtlV3Lock|CtlV3LockWithCmd|CtlV3Elect|CurlV3Lock.*|CurlV3Election.*)$", "-bin-dir", bin)
	})
}

// work is the folder in which etcd's modules were changed.
type work struct{ dir string }

// prepare copies the modules and changes the import.
func prepare(t *testing.T, version string) work {
	w := work{t.TempDir()}
	for _, m := range []string{"tests", "server", "etcdctl"} {
		w.copyModule(t, etcd+"/"+m+"/v3", version, m)
	}
	client := module(t, etcd+"/client/v3", version)
	w.copyTree(t, filepath.Join(client, "experimental", "recipes"), filepath.Join("tests", "recipes"))
	// It needs a module that is not published in every version, and has nothing to do with us.
	_ = os.Remove(filepath.Join(w.dir, "tests", "integration", "cache_test.go"))
	changed := w.rewrite(t)
	t.Logf("etcd %s: the import was replaced in %d files", version, changed)
	if changed < 15 {
		t.Fatalf("only %d files import %s: has etcd moved its tests?", changed, theirs)
	}
	return w
}

// module returns where a module's files are.
func module(t *testing.T, path, version string) string {
	t.Helper()
	out, err := command("", "go", "mod", "download", "-json", path+"@"+version).Output()
	var got struct{ Dir, Error string }
	if jerr := json.Unmarshal(out, &got); jerr != nil || err != nil || got.Error != "" {
		t.Fatalf("download %s@%s: %v %s %s", path, version, err, got.Error, stderr(err))
	}
	return got.Dir
}

func stderr(err error) string {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return string(exit.Stderr)
	}
	return ""
}

// copyModule copies a module, and has it find the others where they are: its go.mod names folders
// of etcd's repository.
func (w work) copyModule(t *testing.T, path, version, to string) {
	t.Helper()
	w.copyTree(t, module(t, path, version), to)
	args := []string{"mod", "edit", "-require=github.com/primacy-go/primacy@v0.0.0",
		"-replace=github.com/primacy-go/primacy=" + root(t)}
	for _, m := range []string{"api", "cache", "client/pkg", "client/v2", "client", "etcdctl", "etcdutl", "pkg",
		"server", "tests"} {
		p := etcd + "/" + strings.TrimSuffix(m, "/v2") + "/v3"
		if m == "client/v2" {
			p = etcd + "/client/v2"
		}
		args = append(args, "-dropreplace="+p)
	}
	if to != "server" {
		args = append(args, "-replace="+etcd+"/server/v3="+filepath.Join(w.dir, "server"))
	}
	args = append(args, "-toolchain=none")
	run(t, filepath.Join(w.dir, to), "go", args...)
}

// root returns this repository's folder.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func (w work) copyTree(t *testing.T, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(w.dir, to, rel)
		if d.IsDir() {
			return os.MkdirAll(target, 0o755)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(target, data, 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// leasing hands its options to client/v3/leasing, which is not changed; our options are its own
// type, but its test file is left alone all the same.
var left = regexp.MustCompile(`leasing_test\.go$`)

// rewrite replaces the import in every file, and returns in how many.
func (w work) rewrite(t *testing.T) (changed int) {
	t.Helper()
	err := filepath.WalkDir(w.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || left.MatchString(path) {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		text := strings.ReplaceAll(string(data), `"`+theirs+`"`, `"`+ours+`"`)
		if text != string(data) {
			changed++
		}
		text = strings.ReplaceAll(text, `"`+etcd+`/client/v3/experimental/recipes"`, `"`+etcd+`/tests/v3/recipes"`)
		if text == string(data) {
			return nil
		}
		return os.WriteFile(path, []byte(text), 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
	return changed
}

// build builds etcd and etcdctl on our package.
func (w work) build(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(w.dir, "bin")
	for dir, name := range map[string]string{"server": "etcd", "etcdctl": "etcdctl"} {
		run(t, filepath.Join(w.dir, dir), "go", "build", "-trimpath", "-o", filepath.Join(bin, name), ".")
	}
	return bin
}

// test runs tests, and fails with their output unless some ran and all passed.
func (w work) test(t *testing.T, pkg string, args ...string) {
	t.Helper()
	begun := time.Now()
	all := []string{"test", "-trimpath", "-v", "-timeout", "30m"}
	if os.Getenv("UPSTREAM_RACE") != "" {
		all = append(all, "-race")
	}
	all = append(append(all, pkg), args...)
	out, err := command(filepath.Join(w.dir, "tests"), "go", all...).CombinedOutput()
	passed := strings.Count(string(out), "\n--- PASS: ")
	t.Logf("%s: %d passed in %v", pkg, passed, time.Since(begun).Round(time.Second))
	if err != nil || passed == 0 || strings.Contains(string(out), "\n--- FAIL: ") {
		log := filepath.Join(os.TempDir(), "upstream-"+strings.NewReplacer("/", "-", " ", "-", ".",
			"").Replace(t.Name())+".log")
		_ = os.WriteFile(log, out, 0o644)
		t.Fatalf("%s: %v; all output is in %s\n%s", pkg, err, log, summary(string(out)))
	}
}

// summary keeps of go test's output what is not the servers' log.
func summary(out string) string {
	var keep []string
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "---") || strings.HasPrefix(line, "FAIL") || strings.HasPrefix(line, "panic") ||
			strings.Contains(line, "_test.go:") ||
			strings.HasPrefix(line, "go: ") || strings.Contains(line, "DATA RACE") || strings.Contains(line, ".go:") &&
			!strings.Contains(line, "logger.go") {
			keep = append(keep, line)
		}
	}
	if len(keep) > 80 {
		keep = keep[len(keep)-80:]
	}
	return strings.Join(keep, "")
}

func command(dir, name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod -buildvcs=false")
	return cmd
}

func run(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	if out, err := command(dir, name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}
