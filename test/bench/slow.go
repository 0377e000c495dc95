package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/primacy-go/primacy/internal/etcdtest"
)

// slowSync stands in for a real disk: how much longer each fdatasync of the write-ahead log takes.
const slowSync = 2 * time.Millisecond

const fastSync = "return syscall.Fdatasync(int(f.Fd()))"

// slowServer returns an etcd server whose log's fdatasync takes slowSync longer, built once on this
// machine from the same sources.
func slowServer(b *box) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	out := filepath.Join(cache, "primacy-test", "etcd-slow-"+etcdtest.Newest)
	if _, err := os.Stat(out); err == nil {
		return out, nil
	}
	dir := b.TempDir()
	const module = "go.etcd.io/etcd/server/v3"
	err = write(dir, map[string]string{
		"go.mod":   "module build\n\ngo 1.26\n\nrequire " + module + " v" + etcdtest.Newest + "\n",
		"tools.go": "//go:build tools\n\npackage build\n\nimport _ \"" + module + "\"\n",
	})
	if err != nil {
		return "", err
	}
	if _, err := goIn(dir, "get", module+"@v"+etcdtest.Newest); err != nil {
		return "", err
	}
	if err := slowModule(dir); err != nil {
		return "", err
	}
	if _, err := goIn(dir, "build", "-trimpath", "-o", out+".new", module); err != nil {
		return "", err
	}
	return out, os.Rename(out+".new", out)
}

// slowModule has the build in dir take a copy of the module that etcd's fdatasync is in, changed to
// be slow.
func slowModule(dir string) error {
	const module = "go.etcd.io/etcd/client/pkg/v3"
	source, err := goIn(dir, "list", "-m", "-f", "{{.Dir}}", module)
	if err != nil {
		return err
	}
	if err := os.CopyFS(filepath.Join(dir, "pkg"), os.DirFS(strings.TrimSpace(source))); err != nil {
		return err
	}
	file := filepath.Join(dir, "pkg", "fileutil", "sync_linux.go")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if strings.Count(string(text), fastSync) != 1 || strings.Count(string(text), `"syscall"`) != 1 {
		return fmt.Errorf("%s: no single %q to change: etcd's source has changed", file, fastSync)
	}
	slow := strings.Replace(string(text), fastSync, fmt.Sprintf("err := syscall.Fdatasync(int(f.Fd()))\n\ttime.Sleep(%d)\n\treturn err", slowSync), 1)
	slow = strings.Replace(slow, `"syscall"`, "\"syscall\"\n\t\"time\"", 1)
	if err := write(filepath.Dir(file), map[string]string{"sync_linux.go": slow}); err != nil {
		return err
	}
	_, err = goIn(dir, "mod", "edit", "-replace", module+"=./pkg")
	return err
}

func write(dir string, files map[string]string) error {
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func goIn(dir string, args ...string) (string, error) {
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod", "CGO_ENABLED=0")
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %v: %w\n%s", args, err, complaint.String())
	}
	return string(out), nil
}
