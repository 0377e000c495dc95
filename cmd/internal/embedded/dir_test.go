//go:build unix

package embedded

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// refused opens dir and wants an error of one line that names the directory and holds each part.
func refused(t *testing.T, dir string, parts ...string) {
	t.Helper()
	n, err := Open(t.Context(), dir, Options{})
	if err == nil {
		n.Close()
		t.Fatalf("Open(%s) succeeded", dir)
	}
	t.Log(err)
	if text := err.Error(); strings.Contains(text, "\n") || !strings.HasPrefix(text, "embedded store "+dir+": ") {
		t.Errorf("not one line about the directory: %q", text)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not say %q", err, part)
		}
	}
}

// privateDir is a directory that Open accepts.
func privateDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "store")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestForeignDirectoryIsLeftAlone(t *testing.T) {
	dir := privateDir(t)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "thesis.txt"), "mine")
	refused(t, dir, "in use by something else", "thesis.txt")
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("the directory holds %v (%v), want only thesis.txt", entries, err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the directory's mode became %v (%v)", info.Mode(), err)
	}
}

func TestDirectoryOfAnEtcdIsLeftAlone(t *testing.T) {
	dir := privateDir(t)
	if err := os.MkdirAll(filepath.Join(dir, "member", "snap"), 0o700); err != nil {
		t.Fatal(err)
	}
	refused(t, dir, "in use by something else", "member")
}

func TestNewerFormatIsRefused(t *testing.T) {
	dir := privateDir(t)
	write(t, filepath.Join(dir, storeName), "primacy embedded store, format 2\n")
	refused(t, dir, "format 2", "format 1")
}

func TestPathIsFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, "mine")
	refused(t, file, "it must be a directory")
	refused(t, filepath.Join(file, "below"), "it must be a directory")
	if text, err := os.ReadFile(file); string(text) != "mine" {
		t.Errorf("the file holds %q (%v)", text, err)
	}
}

func TestNoSuchPlace(t *testing.T) {
	if _, err := os.Stat("/proc/self"); err != nil {
		t.Skip("no /proc")
	}
	refused(t, "/proc/no-such-place", "choose another directory")
}

func TestWritableByOthersIsRefused(t *testing.T) {
	dir := privateDir(t)
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	refused(t, dir, "other users can write", "0777", "chmod 700")
}

func TestOwnedByAnotherIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a directory away")
	}
	dir := privateDir(t)
	if err := os.Chown(dir, 12345, -1); err != nil {
		t.Fatal(err)
	}
	refused(t, dir, "belongs to user ID 12345")
}

func TestEverythingIsPrivate(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0))
	dir := privateDir(t)
	if err := os.Chmod(dir, 0o755); err != nil { // as mkdir makes it
		t.Fatal(err)
	}
	dir = filepath.Join(dir, "a", "b")
	n := openNode(t, dir)
	put(t, n, "k", "v")
	files := 0
	err := filepath.WalkDir(filepath.Dir(dir), func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		want := fs.FileMode(0o600)
		if e.IsDir() {
			want = 0o700
		}
		files++
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has mode %04o, want %04o", path, got, want)
		}
		return nil
	})
	if err != nil || files < 10 {
		t.Errorf("%d files looked at: %v", files, err)
	}
}

func TestLooseDirectoryOfOursIsTightened(t *testing.T) {
	dir := privateDir(t)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	openNode(t, dir)
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode is %v (%v), want 0700", info.Mode(), err)
	}
}

func TestLongAndOddPaths(t *testing.T) {
	for _, name := range []string{
		strings.Repeat("a-very-long-name/", 20) + "store",
		"with space",
		"per%41cent",
		"question?mark#hash",
		"ünïcode:colon",
	} {
		t.Run(name[:8], func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), name)
			first := openNode(t, dir)
			rev := put(t, first, "k", "v")
			// Join, and take over on the same path.
			second := openNode(t, dir)
			if second.Hosting() {
				t.Fatal("two hosts")
			}
			if got := get(t, second, "k"); got != "v" {
				t.Errorf("got %q, want v", got)
			}
			if err := first.Close(); err != nil {
				t.Fatal(err)
			}
			if got := put(t, second, "k2", "v"); got != rev+1 {
				t.Errorf("revision %d, want %d", got, rev+1)
			}
		})
	}
}

func TestDefaultDir(t *testing.T) {
	for _, c := range []struct{ state, home, want string }{
		{"/state", "/home/a", "/state/primacy"},
		{"", "/home/a", "/home/a/.local/state/primacy"},
		{"relative", "/home/a", "/home/a/.local/state/primacy"},
		{"", "", ""},
	} {
		t.Setenv("XDG_STATE_HOME", c.state)
		t.Setenv("HOME", c.home)
		got, err := DefaultDir()
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("state %q, home %q: got %q, %v, want %q", c.state, c.home, got, err, c.want)
		}
	}
}

func TestLogIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), logName)
	l, err := openLog(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	line := []byte(strings.Repeat("x", 999) + "\n")
	for range 5 * logLimit / len(line) {
		if _, err := l.Write(line); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []string{path, path + ".1"} {
		if info, err := os.Stat(p); err != nil || info.Size() > logLimit || info.Size() == 0 {
			t.Errorf("%s: %v, %v", p, info, err)
		}
	}
	if others, _ := filepath.Glob(path + ".*"); len(others) != 1 {
		t.Errorf("older logs: %v, want one", others)
	}
}

// waitLimit is how long tests wait for what should be soon.
const waitLimit = time.Minute
