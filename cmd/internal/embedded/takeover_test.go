//go:build unix

package embedded

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/servertest"
)

// takeOverLimit is generous: the machine may be busy, and the race detector slows everything down.
const takeOverLimit = 30 * time.Second

func TestSecondProcessJoins(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "store")
	began := time.Now()
	first := startChild(t, dir)
	if !first.opened() {
		t.Fatal("the first process does not host")
	}
	t.Logf("cold start of a process: %v", time.Since(began))
	rev := first.put("k", "v")
	began = time.Now()
	second := startChild(t, dir)
	if second.opened() {
		t.Fatal("the second process hosts beside the first")
	}
	t.Logf("join: %v", time.Since(began))
	second.want("get k", fmt.Sprint("v ", rev))
	second.put("k2", "w")
	second.want("close", "closed <nil>")
	first.want("get k2", fmt.Sprint("w ", rev+1))
	first.want("close", "closed <nil>")
	began = time.Now()
	third := startChild(t, dir)
	if !third.opened() {
		t.Fatal("nobody is left, and the third process does not host")
	}
	t.Logf("warm start of a process: %v", time.Since(began))
	third.want("get k", fmt.Sprint("v ", rev))
}

func TestTakeOverAfterKill(t *testing.T) {
	dir := t.TempDir()
	host := startChild(t, dir)
	host.opened()
	last := host.put("k", "v")
	created := last
	for round := range 3 {
		next := startChild(t, dir)
		if next.opened() {
			t.Fatal("two hosts")
		}
		next.want("get k", fmt.Sprint("v ", created)) // its client is connected
		began := time.Now()
		host.kill()
		rev := next.put(fmt.Sprint("after", round), "x")
		took := time.Since(began)
		t.Logf("SIGKILL to an acknowledged write: %v", took)
		if took > takeOverLimit {
			t.Errorf("take-over took %v, want at most %v", took, takeOverLimit)
		}
		next.want("await", "true <nil>")
		if rev <= last {
			t.Errorf("revision went from %d to %d", last, rev)
		}
		next.want("get k", fmt.Sprint("v ", created))
		next.want(fmt.Sprint("get after", round), fmt.Sprint("x ", rev))
		last, host = rev, next
	}
}

func TestCloseHandsOver(t *testing.T) {
	dir := t.TempDir()
	host := startChild(t, dir)
	host.opened()
	rev := host.put("k", "v")
	next := startChild(t, dir)
	next.opened()
	next.want("get k", fmt.Sprint("v ", rev))
	began := time.Now()
	host.want("close", "closed <nil>")
	closed := time.Since(began)
	if got := next.put("k2", "v"); got != rev+1 {
		t.Errorf("revision is %d after a clean hand-over, want %d", got, rev+1)
	}
	t.Logf("Close: %v; to an acknowledged write: %v", closed, time.Since(began))
	next.want("hosting", "true")
}

func TestManyStartAtOnce(t *testing.T) {
	servertest.Long(t, "race-program")
	dir := filepath.Join(t.TempDir(), "store")
	var all []*child
	for range 5 {
		all = append(all, startChild(t, dir))
	}
	hosts := 0
	for _, c := range all {
		if c.opened() {
			hosts++
		}
	}
	if hosts != 1 {
		t.Fatalf("%d hosts, want 1", hosts)
	}
	for i, c := range all {
		c.put(fmt.Sprint("k", i), "v")
	}
	for i := range all {
		if got := all[0].ask(fmt.Sprint("get k", i)); got == "none" {
			t.Errorf("what process %d wrote is not in the store of process 0", i)
		}
	}
}

// TestKilledWhileStarting kills the first process of a directory at every stage of its start.
func TestKilledWhileStarting(t *testing.T) {
	t.Parallel()
	dir := privateDir(t)
	for wait := time.Duration(0); wait < 250*time.Millisecond; wait += 15 * time.Millisecond {
		c := startChild(t, dir)
		time.Sleep(wait) // chooses the stage; nothing is awaited
		c.kill()
	}
	c := startChild(t, dir)
	if !c.opened() {
		t.Error("nobody is left, and it does not host")
	}
	c.put("k", "v")
}
