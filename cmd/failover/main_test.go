//go:build linux

package failover

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if os.Getenv(listenEnv) != "" {
		check(serviceMain())
		os.Exit(0)
	}
	code := m.Run()
	if bin, err := program(); err == nil {
		os.RemoveAll(filepath.Dir(bin))
	}
	os.Exit(code)
}

// program builds cmd/primacy once and returns its path.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "failover-")
	if err != nil {
		return "", err
	}
	bin := filepath.Join(dir, "primacy")
	text, err := exec.Command("go", "build", "-o", bin, "github.com/primacy-go/primacy/cmd/primacy").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, text)
	}
	return bin, nil
})

// needs skips a test without its programs, but where CI=true, where it fails.
func needs(t testing.TB, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil && os.Getenv("CI") == "true" {
			t.Fatal(err)
		} else if err != nil {
			t.Skip(err)
		}
	}
}

func within(limit time.Duration, ok func() bool) bool {
	for end := time.Now().Add(limit); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

func eventually(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	if !within(limit, ok) {
		t.Fatalf("waited %v for: %s", limit, what)
	}
}
