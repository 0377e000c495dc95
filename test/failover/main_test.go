//go:build linux

package failover

import (
	"os"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/programtest"
)

func TestMain(m *testing.M) {
	if os.Getenv(listenEnv) != "" {
		check(serviceMain())
		os.Exit(0)
	}
	code := m.Run()
	programtest.Remove()
	os.Exit(code)
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
