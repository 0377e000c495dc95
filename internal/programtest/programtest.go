// Package programtest builds the program for tests that start it, and says what else they need. It
// is for tests only.
package programtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/primacy-go/primacy/internal/servertest"
)

var (
	mu  sync.Mutex
	dir string // of the program, once somebody has asked for it
)

// Program builds cmd/primacy once and returns its path. The linked program is kept on this machine:
// the next package's tests, of unchanged code, have a copy without linking it again.
var Program = sync.OnceValues(func() (string, error) {
	mu.Lock()
	defer mu.Unlock()
	kept, err := servertest.CacheOf("primacy")
	if err != nil {
		return "", err
	}
	unlock, err := kept.Lock()
	if err != nil {
		return "", err
	}
	defer unlock()
	const pkg = "github.com/primacy-go/primacy/cmd/primacy"
	text, err := exec.Command("go", "build", "-o", string(kept), pkg).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, text)
	}
	if dir, err = os.MkdirTemp("", "primacy-program-"); err != nil {
		return "", err
	}
	program, err := os.ReadFile(string(kept))
	if err != nil {
		return "", err
	}
	bin := filepath.Join(dir, "primacy")
	return bin, os.WriteFile(bin, program, 0o755)
})

// Remove removes what Program built, if it did: TestMain calls it in the end.
func Remove() {
	mu.Lock()
	defer mu.Unlock()
	if dir != "" {
		os.RemoveAll(dir)
	}
}

// Needs skips a test without its programs, but where CI=true, where it fails.
func Needs(t testing.TB, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil && os.Getenv("CI") == "true" {
			t.Fatal(err)
		} else if err != nil {
			t.Skip(err)
		}
	}
}
