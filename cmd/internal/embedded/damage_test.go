//go:build unix

package embedded

import (
	"bytes"
	"context"
	"crypto/sha256"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
)

// written is a directory whose store holds data and was closed.
func written(t *testing.T) string {
	t.Helper()
	dir := privateDir(t)
	n := openNode(t, dir)
	for range 50 {
		put(t, n, "k", strings.Repeat("value", 100))
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func dbPath(dir string) string { return filepath.Join(dir, dataName, "member", "snap", "db") }

// walPath is the only file of etcd's log.
func walPath(t *testing.T, dir string) string {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(dir, dataName, "member", "wal", "*.wal"))
	if err != nil || len(logs) != 1 {
		t.Fatalf("etcd's log is %v (%v)", logs, err)
	}
	return logs[0]
}

// edit changes a file as a failing disk does.
func edit(t *testing.T, path string, change func([]byte) []byte) {
	t.Helper()
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, change(bytes.Clone(old)), 0o600); err != nil {
		t.Fatal(err)
	}
}

func fill(b []byte) {
	for i := range b {
		b[i] = 0xa5
	}
}

// refusal starts a process on dir, and returns the one line it must end with. A process, because
// the failure to be feared is one that takes the process down.
func refusal(t *testing.T, dir string) string {
	t.Helper()
	c := startChild(t, dir)
	type end struct {
		line string
		err  error
	}
	ended := make(chan end, 1)
	go func() {
		var e end
		if c.out.Scan() {
			e.line = c.out.Text()
		}
		e.err = c.cmd.Wait()
		ended <- e
	}()
	select {
	case e := <-ended:
		if c.cmd.ProcessState.ExitCode() != 1 || !strings.HasPrefix(e.line, "error embedded store "+dir+": ") {
			t.Errorf("ended with %v and the line %q, and wrote\n%s", e.err, e.line, c.errs.String())
		}
		t.Log(e.line)
		return e.line
	case <-time.After(waitLimit):
		t.Fatal("a process on damaged data neither ended nor said why")
	}
	return ""
}

func TestDamagedDataFile(t *testing.T) {
	t.Parallel()
	damage := map[string]func([]byte) []byte{
		"cut to half":        func(b []byte) []byte { return b[:20<<10] },
		"cut to some bytes":  func(b []byte) []byte { return b[:100] },
		"both meta pages":    func(b []byte) []byte { fill(b[:8192]); return b },
		"every page but two": func(b []byte) []byte { fill(b[8192:]); return b },
		"heads of the pages": func(b []byte) []byte {
			for at := 8192; at < len(b); at += 4096 {
				fill(b[at : at+16])
			}
			return b
		},
		"another file": func(b []byte) []byte { return bytes.Repeat([]byte("not a database\n"), 3000) },
	}
	dir := written(t)
	sound, err := os.ReadFile(dbPath(dir))
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range damage {
		t.Run(name, func(t *testing.T) {
			edit(t, dbPath(dir), func([]byte) []byte { return change(bytes.Clone(sound)) })
			before := sha256.Sum256(mustRead(t, dbPath(dir)))
			if line := refusal(t, dir); !strings.Contains(line, "damaged") {
				t.Errorf("it does not say that the data is damaged: %q", line)
			}
			if sha256.Sum256(mustRead(t, dbPath(dir))) != before {
				t.Error("the damaged file was changed")
			}
		})
	}
	// Putting it back from a backup is what the error says to do.
	edit(t, dbPath(dir), func([]byte) []byte { return sound })
	if got := get(t, openNode(t, dir), "k"); !strings.HasPrefix(got, "value") {
		t.Errorf("with the sound file back: %q", got)
	}
}

func mustRead(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestDamagedLog(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func([]byte) []byte{
		"bytes in the middle": func(b []byte) []byte { fill(b[5000:5100]); return b },
		"its head":            func(b []byte) []byte { fill(b[:512]); return b },
		"empty":               func(b []byte) []byte { return nil },
		"cut":                 func(b []byte) []byte { return b[:3000] },
	} {
		t.Run(name, func(t *testing.T) {
			dir := written(t)
			edit(t, walPath(t, dir), change)
			if line := refusal(t, dir); !strings.Contains(line, "damaged") {
				t.Errorf("it does not say that the data may be damaged: %q", line)
			}
		})
	}
}

func TestLostLog(t *testing.T) {
	dir := written(t)
	if err := os.Remove(walPath(t, dir)); err != nil {
		t.Fatal(err)
	}
	if line := refusal(t, dir); !strings.Contains(line, "damaged") {
		t.Errorf("it does not say that the data is damaged: %q", line)
	}
}

// TestDataOfANewerEtcd: etcd says that of itself, by panicking.
func TestDataOfANewerEtcd(t *testing.T) {
	dir := written(t)
	db, err := bolt.Open(dbPath(dir), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		return tx.Bucket([]byte("cluster")).Put([]byte("clusterVersion"), []byte("9.9.0"))
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if line := refusal(t, dir); !strings.Contains(line, "another version") {
		t.Errorf("it does not speak of versions: %q", line)
	}
}

func TestDataInUse(t *testing.T) {
	t.Parallel()
	dir := written(t)
	db, err := bolt.Open(dbPath(dir), 0o600, nil) // as an etcd does that was started on DIR/etcd by hand
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	refused(t, dir, "is in use by another process")
}

// TestBreaksWhileHosting: what etcd regards as the end of its process is the end of the store only.
func TestBreaksWhileHosting(t *testing.T) {
	n, err := Open(t.Context(), privateDir(t), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close() // which says so if what broke does not end
	put(t, n, "k", "v")
	// etcd cuts its log to a new file when it is full, and a disk that takes none is fatal to it.
	if err := os.RemoveAll(filepath.Join(n.dir.path(dataName), "member", "wal")); err != nil {
		t.Fatal(err)
	}
	c := client(t, n)
	ctx, cancel := context.WithTimeout(t.Context(), 2*waitLimit)
	defer cancel()
	broken := make(chan error, 1)
	go func() {
		_, err := n.Changed(ctx, true)
		if err == nil {
			_, err = n.Changed(ctx, false)
		}
		broken <- err
	}()
	for {
		select {
		case err := <-broken:
			t.Log(err)
			if ctx.Err() != nil || err == nil || !strings.Contains(err.Error(), "etcd stopped: ") {
				t.Errorf("a store whose log is gone ended with %v", err)
			}
			return
		default:
		}
		try, stop := context.WithTimeout(ctx, time.Second)
		c.Put(try, "k", strings.Repeat("x", 1<<20)) // fails in the end
		stop()
	}
}
