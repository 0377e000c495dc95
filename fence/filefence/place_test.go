//go:build unix

package filefence_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/fence"
	"github.com/primacy-go/primacy/fence/filefence"
)

// A path means what the system takes it for: ".." behind a symbolic link is the parent of what the
// link points to.
func TestDotsBehindALink(t *testing.T) {
	root := t.TempDir()
	err := errors.Join(os.MkdirAll(root+"/other/deep", 0o755), os.Mkdir(root+"/app", 0o755), os.Symlink(root+"/other/deep", root+"/app/sub"),
		os.Symlink("sub/../g", root+"/app/link"), os.Symlink("app/sub", root+"/here"))
	if err != nil {
		t.Fatal(err)
	}
	check := func(path, plain string) {
		t.Helper()
		put(t, path, "by 9", 9)
		if got := content(t, path); got != "by 9" {
			t.Errorf("%s: what was written went elsewhere: %q is read", path, got)
		}
		if err := filefence.Write(t.Context(), plain, []byte("late"), 0o600, stamp(7)); !errors.Is(err, fence.ErrStale) {
			t.Errorf("%s: by its plain name: %v, want ErrStale", path, err)
		}
	}
	check(root+"/app/sub/../f", root+"/other/f")
	check(root+"/app/link", root+"/other/g")
	t.Chdir(root + "/here") // $PWD goes through two links
	check("../h", root+"/other/h")
	if names, _ := filepath.Glob(root + "/app/*"); len(names) != 2 {
		t.Errorf("something was made beside the links: %v", names)
	}
}

func TestNamesThatAreRefused(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "f"), "good", 7)
	long := strings.Repeat("n", 244)
	put(t, filepath.Join(dir, long), "good", 7)
	for _, base := range []string{".", "..", "", "f/", "f/.", "f/..", ".f.fence", ".f.lock", ".f.fence-new", long + "n"} {
		if err := filefence.Write(t.Context(), dir+"/"+base, nil, 0o600, stamp(9)); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q = %v, want one line", base, err)
		}
	}
	if err := filefence.Write(t.Context(), dir+"/"+long+"n", nil, 0o600, stamp(9)); err == nil || !strings.Contains(err.Error(), "244") {
		t.Errorf("a long name = %v", err)
	}
	mine := filepath.Join(dir, ".f.new") // a neighbour that is not ours
	if err := os.WriteFile(mine, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(dir, "f"), "better", 7)
	if content(t, mine) != "mine" {
		t.Error("a neighbour was overwritten")
	}
}

// A stamp that is to be seen may not be safe from a crash yet: its writer was killed before the
// sync, or the disk refused. So it is written and synced again, by Raise, Read and Write alike.
func TestAStampThatIsThereIsStoredAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	put(t, path, "one", 7)
	fenceFile := filepath.Join(filepath.Dir(path), ".f.fence")
	for what, do := range map[string]func() error{
		"Raise": func() error { return filefence.Raise(t.Context(), path, stamp(7)) },
		"Read":  func() error { _, err := filefence.Read(t.Context(), path, stamp(7)); return err },
		"Write": func() error { return filefence.Write(t.Context(), path, nil, 0o600, stamp(7)) },
	} {
		old, err := os.Open(fenceFile) // keeps its inode from being used again
		if err != nil {
			t.Fatal(err)
		}
		before, _ := old.Stat()
		if err := do(); err != nil {
			t.Fatal(err)
		}
		if after, err := os.Stat(fenceFile); err != nil || os.SameFile(before, after) {
			t.Errorf("%s left the stamp as it was (%v)", what, err)
		}
		old.Close()
	}
}

// A folder that is moved while a writer waits for the lock: it writes what is at the path by then,
// under the fence there.
func TestAFolderThatIsMovedAway(t *testing.T) {
	root := t.TempDir()
	dir, away := filepath.Join(root, "app"), filepath.Join(root, "away")
	path := filepath.Join(dir, "f")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	put(t, path, "one", 1)
	free := lockByHand(t, filepath.Join(dir, ".f.lock"))
	stale, fresh := make(chan error, 1), make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() { stale <- filefence.Write(ctx, path, []byte("late"), 0o600, stamp(7)) }()
	go func() { fresh <- filefence.Write(ctx, path, []byte("fresh"), 0o600, stamp(9)) }()
	time.Sleep(50 * time.Millisecond) // both wait
	if err := errors.Join(os.Rename(dir, away), os.Mkdir(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	put(t, path, "new folder", 8)
	free()
	if err := <-stale; !errors.Is(err, fence.ErrStale) {
		t.Errorf("the stale write = %v, want ErrStale by the new folder's fence", err)
	}
	if err := <-fresh; err != nil || content(t, path) != "fresh" {
		t.Errorf("the fresh write = %v, and at the path is %q", err, content(t, path))
	}
	if got := content(t, filepath.Join(away, "f")); got != "one" {
		t.Errorf("in the folder that was moved away is %q", got)
	}
}
