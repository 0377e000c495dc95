package zkstore_test

import (
	"os"
	"sync"
	"testing"

	"github.com/primacy-go/primacy/internal/zktest"
)

// outlives is the testing.TB of what is shared by tests: its cleanups run when all have ended.
type outlives struct {
	testing.TB
	dir  string
	done *[]func()
}

func (o outlives) Cleanup(f func()) { *o.done = append(*o.done, f) }
func (o outlives) TempDir() string {
	dir, err := os.MkdirTemp(o.dir, "")
	if err != nil {
		o.Fatal(err)
	}
	return dir
}
func (outlives) Failed() bool { return false }

var common struct {
	sync.Mutex
	srv  *zktest.Server
	dir  string
	done []func()
}

// shared returns a server for tests that do nothing to it, each with names of its own: a JVM takes
// longer to start than most tests.
func shared(t *testing.T) *zktest.Server {
	t.Helper()
	common.Lock()
	defer common.Unlock()
	if common.srv == nil {
		if common.dir == "" {
			dir, err := os.MkdirTemp("", "zkstore")
			if err != nil {
				t.Fatal(err)
			}
			common.dir = dir
		}
		common.srv = zktest.Start(outlives{t, common.dir, &common.done}, zktest.Options{NoSync: true, Config: long})
	}
	return common.srv
}

func TestMain(m *testing.M) {
	code := m.Run()
	for _, f := range common.done {
		f()
	}
	if common.dir != "" {
		os.RemoveAll(common.dir)
	}
	os.Exit(code)
}
