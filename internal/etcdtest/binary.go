// Package etcdtest runs real etcd servers for tests: it builds them from the Go module proxy,
// starts them on loopback, and does to them what networks and machines do. It is for tests only
// and imports nothing of etcd.
package etcdtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/primacy-go/primacy/internal/servertest"
)

// The versions tests run against: the newest patch of each minor version that is still maintained.
const (
	V35    = "3.5.35"
	V36    = "3.6.16"
	V37    = "3.7.3"
	Newest = V37
)

// Versions returns what a test of every version runs on. Under -short that is the newest alone: to
// build the others takes minutes on a fresh machine.
func Versions() []string {
	if testing.Short() {
		return []string{Newest}
	}
	return []string{V35, V36, V37}
}

// Binary returns the path of an etcd server of that version, built once on this machine and kept
// in the user's cache.
func Binary(tb testing.TB, version string) string {
	tb.Helper()
	return built(tb, "go.etcd.io/etcd/server/v3", "etcd", version)
}

// Etcdctl returns the path of etcd's command line client, of the newest version.
func Etcdctl(tb testing.TB) string {
	tb.Helper()
	return built(tb, "go.etcd.io/etcd/etcdctl/v3", "etcdctl", Newest)
}

// built returns the cached program, after building it if it is not there.
func built(tb testing.TB, module, name, version string) string {
	tb.Helper()
	return builtWith(tb, module, name+"-"+version, version, func(string) ([]string, error) { return nil, nil })
}

// builtWith is the same for a program that is built with flags, which may name files that flags
// writes into a folder.
func builtWith(tb testing.TB, module, name, version string, flags func(dir string) ([]string, error)) string {
	tb.Helper()
	kept, err := servertest.CacheOf(name)
	if err != nil {
		tb.Fatalf("etcdtest: no cache folder: %v", err)
	}
	path, err := kept.Build(func(out string) error { return build(module, version, out, flags) })
	if err != nil {
		tb.Fatalf("etcdtest: build %s: %v", name, err)
	}
	return path
}

// build compiles module at version in a module of its own, so that its dependencies stay out of
// ours.
func build(module, version, out string, flags func(dir string) ([]string, error)) error {
	tmp, err := os.MkdirTemp("", "primacy-build-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	files := map[string]string{
		"go.mod":   "module build\n\ngo 1.26\n\nrequire " + module + " v" + version + "\n",
		"tools.go": "//go:build tools\n\npackage build\n\nimport _ \"" + module + "\"\n",
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(tmp, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	with, err := flags(tmp)
	if err != nil {
		return err
	}
	steps := [][]string{
		{"get", module + "@v" + version},
		append(append([]string{"build", "-trimpath"}, with...), "-o", out, module),
	}
	for _, args := range steps {
		cmd := exec.Command("go", args...)
		cmd.Dir = tmp
		cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod", "CGO_ENABLED=0")
		if text, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("go %v: %w\n%s", args, err, text)
		}
	}
	return nil
}
