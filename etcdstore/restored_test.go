package etcdstore

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

// onDisk starts a server whose data the test can change while it is down.
func onDisk(t *testing.T) (srv *etcdtest.Server, data string) {
	data = filepath.Join(t.TempDir(), "data")
	return etcdtest.Start(t, etcdtest.Options{DataDir: func(int) string { return data }}), data
}

// put replaces the data of a server that is down; with an empty from it begins anew.
func put(t *testing.T, data, from string) {
	t.Helper()
	if err := os.RemoveAll(data); err != nil {
		t.Fatal(err)
	}
	if from == "" {
		return
	}
	copyAll(t, from, data)
}

func copyAll(t *testing.T, from, to string) {
	t.Helper()
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		t.Fatalf("cp: %s", out)
	}
}

// grantedAgain grants as a session does that has lost its lease: until it has another.
func grantedAgain(t *testing.T, s *Store) (err error) {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if _, err = s.Grant(ending(t, 5*time.Second), "a", 10*time.Second); err == nil {
			return nil
		}
	}
	return err
}

// TestAnEtcdThatBeganAnewGrantsLeases: its data is lost, and with the same flags it is the same
// cluster again. Its raft terms begin anew, below one that this process has seen.
func TestAnEtcdThatBeganAnewGrantsLeases(t *testing.T) {
	t.Parallel()
	srv, data := onDisk(t)
	for range 3 { // each start is a new raft term
		srv.Kill()
		srv.Restart()
	}
	s, _, _ := gated(t, srv.Endpoint(), srv.Endpoint())
	l := granted(t, s, "a", 10*time.Second)
	known := s.wire.Term()
	srv.Kill()
	put(t, data, "")
	srv.Restart()
	if err := renewedOnce(t, l); !errors.Is(err, driver.ErrGone) {
		t.Fatalf("Renew = %v, want ErrGone: etcd has lost the lease", err)
	}
	if err := grantedAgain(t, s); err != nil {
		t.Errorf("a process that knew raft term %d gets no lease any more: %v", known, err)
	}
}
