package servertest

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"
)

// TestAFileIsBuiltOnce, however many want it at once; a build that failed leaves nothing and is
// made again.
func TestAFileIsBuiltOnce(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("HOME", t.TempDir())
	c, err := CacheOf("file")
	if err != nil {
		t.Fatal(err)
	}
	failed := errors.New("failed")
	_, err = c.Build(func(out string) error {
		return errors.Join(os.WriteFile(out, []byte("half"), 0o644), failed)
	})
	if !errors.Is(err, failed) || c.Exists() {
		t.Fatalf("a build that fails: %v, kept %v", err, c.Exists())
	}
	var builds atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			path, err := c.Build(func(out string) error {
				builds.Add(1)
				return os.WriteFile(out, []byte("whole"), 0o644)
			})
			if text, _ := os.ReadFile(path); err != nil || string(text) != "whole" {
				t.Errorf("%q, %v", text, err)
			}
		})
	}
	wg.Wait()
	if n := builds.Load(); n != 1 {
		t.Errorf("built %d times", n)
	}
}
