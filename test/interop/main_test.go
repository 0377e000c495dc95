//go:build linux

package interop

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/programtest"
)

// helperEnv says that this binary runs as one of the helper processes.
const helperEnv = "INTEROP_HELPER"

func TestMain(m *testing.M) {
	var err error
	switch role := os.Getenv(helperEnv); role {
	case "act":
		err = actMain()
	case "wait":
		err = waitMain()
	case "":
		code := m.Run()
		programtest.Remove()
		os.Exit(code)
	default:
		err = fmt.Errorf("no such role: %q", role)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "interop helper:", err)
		os.Exit(99)
	}
	os.Exit(0)
}

// eventually polls for a condition, and fails the test if it does not come.
func eventually(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := boottime.Now() + limit; !ok(); time.Sleep(2 * time.Millisecond) {
		if boottime.Now() > end {
			t.Fatalf("waited %v for: %s", limit, what)
		}
	}
}

// soon returns a context for what must be quick. Generous: the machine may be busy.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return ctx
}

const limit = time.Minute
