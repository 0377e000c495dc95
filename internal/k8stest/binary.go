package k8stest

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/servertest"
)

// Version is the version of Kubernetes that is run: that in test/kubeapiserver/go.mod.
const Version = "1.36.3"

// program is where the server's program is, or will be once it is built.
func program(tb testing.TB) servertest.Cache {
	tb.Helper()
	file, err := servertest.CacheOf("kube-apiserver-" + Version)
	if err != nil {
		tb.Fatalf("k8stest: no cache folder: %v", err)
	}
	return file
}

// Binary returns the path of the API server, built once on this machine and kept in the user's
// cache. Test processes that want it at once wait for the one that builds.
func Binary(tb testing.TB) string {
	tb.Helper()
	path, err := program(tb).Build(build)
	if err != nil {
		tb.Fatalf("k8stest: build kube-apiserver: %v", err)
	}
	return path
}

// root returns the folder of this module.
func root() (string, error) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/primacy-go/primacy").Output()
	if err != nil {
		return "", fmt.Errorf("find the folder of this module: %w", err)
	}
	return strings.TrimSpace(string(dir)), nil
}

// build compiles the server. On the way it says how far it is: it takes minutes.
func build(out string) error {
	root, err := root()
	if err != nil {
		return err
	}
	const version = "k8s.io/component-base/version."
	cmd := exec.Command("go", "build", "-v", "-trimpath", "-ldflags", "-s -w -X "+version+"gitVersion=v"+Version,
		"-o", out, ".")
	cmd.Dir = filepath.Join(root, "test", "kubeapiserver")
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod", "CGO_ENABLED=0")
	said, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	begun := time.Now()
	if err := cmd.Start(); err != nil {
		return err
	}
	var packages atomic.Int64
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		for {
			fmt.Fprintf(os.Stderr, "k8stest: building kube-apiserver %s, once on this machine: %d of some 2150 "+
				"packages, %v\n",
				Version, packages.Load(), time.Since(begun).Round(time.Second))
			select {
			case <-tick.C:
			case <-ended:
				return
			}
		}
	}()
	last := tail(said, &packages)
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%w\n%s", err, strings.Join(last, "\n"))
	}
	return nil
}

// tail reads all lines, counts them, and returns the last.
func tail(r io.Reader, n *atomic.Int64) (last []string) {
	for lines := bufio.NewScanner(r); lines.Scan(); n.Add(1) {
		last = append(last, lines.Text())
		last = last[max(0, len(last)-20):]
	}
	return last
}
