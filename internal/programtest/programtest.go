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
)

var (
	mu  sync.Mutex
	dir string // of the program, once somebody has asked for it
)

// Program builds cmd/primacy once and returns its path.
var Program = sync.OnceValues(func() (string, error) {
	mu.Lock()
	defer mu.Unlock()
	var err error
	if dir, err = os.MkdirTemp("", "primacy-program-"); err != nil {
		return "", err
	}
	bin := filepath.Join(dir, "primacy")
	text, err := exec.Command("go", "build", "-o", bin, "github.com/primacy-go/primacy/cmd/primacy").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, text)
	}
	return bin, nil
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
