package filefence_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/fence"
	"github.com/primacy-go/primacy/fence/filefence"
)

func stamp(token primacy.Token) fence.Stamp { return fence.Stamp{Name: "x", Token: token} }

func put(t *testing.T, path, data string, token primacy.Token) {
	t.Helper()
	if err := filefence.Write(t.Context(), path, []byte(data), 0o640, stamp(token)); err != nil {
		t.Fatal(err)
	}
}

func content(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestAStaleWriteLeavesTheFileUntouched(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	put(t, path, "new", 9)
	before, _ := os.Stat(path)
	for what, do := range map[string]func() error{
		"Write": func() error { return filefence.Write(t.Context(), path, []byte("old"), 0o600, stamp(8)) },
		"Raise": func() error { return filefence.Raise(t.Context(), path, stamp(8)) },
		"Read": func() error {
			data, err := filefence.Read(t.Context(), path, stamp(8))
			if data != nil {
				t.Errorf("a stale Read returned %q", data)
			}
			return err
		},
	} {
		var stale *fence.StaleError
		if err := do(); !errors.As(err, &stale) || stale.Token != 8 || stale.Largest != 9 {
			t.Errorf("%s = %v, want a StaleError with 8 and 9", what, err)
		}
	}
	after, _ := os.Stat(path)
	if content(t, path) != "new" || !os.SameFile(before, after) {
		t.Error("the file was touched")
	}
}

func TestRaiseBeforeTheFirstReadKeepsALateWriteOut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	put(t, path, "by 7", 7)
	data, err := filefence.Read(t.Context(), path, stamp(9))
	if err != nil || string(data) != "by 7" {
		t.Fatalf("Read = %q, %v", data, err)
	}
	if err := filefence.Write(t.Context(), path, []byte("late"), 0o600, stamp(7)); !errors.Is(err, fence.ErrStale) {
		t.Errorf("a write between the read and the first write of the new leader = %v, want ErrStale", err)
	}
	fresh := filepath.Join(t.TempDir(), "not there yet")
	if err := filefence.Raise(t.Context(), fresh, stamp(9)); err != nil {
		t.Fatal(err)
	}
	if err := filefence.Write(t.Context(), fresh, nil, 0o600, stamp(8)); !errors.Is(err, fence.ErrStale) {
		t.Errorf("after Raise: %v, want ErrStale", err)
	}
}

func TestLinksModesAndNames(t *testing.T) {
	dir := t.TempDir()
	path, link, far := filepath.Join(dir, "f"), filepath.Join(dir, "link"), filepath.Join(dir, "sub", "far")
	put(t, path, "one", 3)
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o640 {
		t.Errorf("mode of a new file = %v, want 640", info.Mode())
	}
	if err := os.Chmod(path, 0o604); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "sub"), 0o700), os.Symlink("f", link), os.Symlink("../link", far)); err != nil {
		t.Fatal(err)
	}
	put(t, far, "two", 4)
	if info, _ := os.Lstat(link); info.Mode()&os.ModeSymlink == 0 || content(t, path) != "two" {
		t.Error("the link was replaced instead of the file")
	}
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o604 {
		t.Errorf("mode = %v, want 604 kept", info.Mode())
	}
	if err := filefence.Write(t.Context(), path, nil, 0o600, stamp(3)); !errors.Is(err, fence.ErrStale) {
		t.Errorf("by its own name: %v, want the fence that the link raised", err)
	}
	dangling := filepath.Join(dir, "dangling")
	if err := os.Symlink("sub/target", dangling); err != nil {
		t.Fatal(err)
	}
	put(t, dangling, "made", 1)
	if content(t, filepath.Join(dir, "sub", "target")) != "made" {
		t.Error("a link to a file that was not there was not followed")
	}
	t.Chdir(dir)
	put(t, "f", "relative", 5)
	if content(t, path) != "relative" {
		t.Error("a relative path went elsewhere")
	}
}

func TestOwnerIsKept(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can give a file away")
	}
	path := filepath.Join(t.TempDir(), "f")
	put(t, path, "one", 1)
	if err := os.Chown(path, 12345, 54321); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o640|os.ModeSetgid); err != nil {
		t.Fatal(err)
	}
	put(t, path, "two", 2)
	info, _ := os.Stat(path)
	if got := fmt.Sprintf("%+v", info.Sys()); !strings.Contains(got, "Uid:12345 Gid:54321") || info.Mode() != 0o640|os.ModeSetgid {
		t.Errorf("owner or mode was lost: %v %v", info.Mode(), got)
	}
}

func TestBadInput(t *testing.T) {
	dir := t.TempDir()
	for path, s := range map[string]fence.Stamp{
		filepath.Join(dir, "f"):           {},
		filepath.Join(dir, "g"):           {Name: "a\x00b", Token: 1},
		dir:                               stamp(1),
		filepath.Join(dir, "no", "where"): stamp(1),
		"/dev/null":                       stamp(1),
	} {
		err := filefence.Write(t.Context(), path, []byte("x"), 0o600, s)
		if err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("Write to %s with %+v = %v, want one line", path, s, err)
		}
	}
	loop := filepath.Join(dir, "loop")
	if err := os.Symlink("loop", loop); err != nil {
		t.Fatal(err)
	}
	if err := filefence.Write(t.Context(), loop, nil, 0o600, stamp(1)); err == nil {
		t.Error("a link to itself was written")
	}
	if names, _ := filepath.Glob(filepath.Join(dir, ".*")); len(names) > 0 {
		t.Errorf("bad input left %v", names)
	}
}

func TestADamagedFenceLetsNobodyInUntilAdopted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	put(t, path, "good", 9)
	damage := filepath.Join(filepath.Dir(path), ".f.fence")
	for _, text := range []string{"", "{", `{"token":"x"}`, `{"token":9}`, "{}", "null", `{"name":"x","token":"0"}`} {
		if err := os.WriteFile(damage, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := filefence.Write(t.Context(), path, []byte("bad"), 0o600, stamp(1)); err == nil || content(t, path) != "good" {
			t.Errorf("fence file %q: Write = %v", text, err)
		}
	}
	if err := filefence.Adopt(t.Context(), path, fence.Stamp{Name: "x", Token: 2, Origin: "etcd/b"}); err != nil {
		t.Fatal(err)
	}
	err := filefence.Write(t.Context(), path, []byte("bad"), 0o600, fence.Stamp{Name: "x", Token: 10, Origin: "etcd/a"})
	if !errors.Is(err, fence.ErrOrigin) || content(t, path) != "good" {
		t.Errorf("a larger token of the old store: %v, want ErrOrigin", err)
	}
	if err := filefence.Write(t.Context(), path, []byte("ours"), 0o600, fence.Stamp{Name: "x", Token: 2, Origin: "etcd/b"}); err != nil {
		t.Error(err)
	}
}

func TestWaitingForTheLockEndsWithTheContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	put(t, path, "one", 1)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	if err := filefence.Write(ctx, path, []byte("two"), 0o600, stamp(1)); err != nil {
		t.Errorf("a free lock is taken whatever ctx says: %v", err)
	}
	hold := lockByHand(t, filepath.Join(filepath.Dir(path), ".f.lock"))
	err := filefence.Write(ctx, path, []byte("three"), 0o600, stamp(2))
	if err == nil || !strings.Contains(err.Error(), "enough") || content(t, path) != "two" {
		t.Errorf("Write = %v, want the cause of its context", err)
	}
	hold()
	put(t, path, "three", 2)
}

// Many writers with tokens of all sizes, and readers who ask nobody: tokens in the file never go
// back, no version is ever seen in part.
func TestManyWriters(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	put(t, path, version(1, 0), 1)
	stop := make(chan struct{})
	var writers, readers sync.WaitGroup
	for range 3 {
		readers.Go(func() {
			last := 0
			for {
				select {
				case <-stop:
					return
				default:
				}
				data, err := os.ReadFile(path)
				token, ok := whole(data)
				if err != nil || !ok || token < last {
					t.Errorf("read %.40q (%v) after token %d", data, err, last)
					return
				}
				last = token
			}
		})
	}
	for w := range 6 {
		writers.Go(func() {
			for i := range 15 {
				token := 1 + i + rand.IntN(5)
				err := filefence.Write(t.Context(), path, []byte(version(token, w)), 0o600, stamp(primacy.Token(token)))
				if err != nil && !errors.Is(err, fence.ErrStale) {
					t.Errorf("Write: %v", err)
				}
			}
		})
	}
	writers.Wait()
	close(stop)
	readers.Wait()
}

// version is a content that shows its token and whether it is whole.
func version(token, writer int) string {
	return fmt.Sprintf("%d %s end", token, strings.Repeat(fmt.Sprint(writer), 20000))
}

func whole(data []byte) (token int, ok bool) {
	_, err := fmt.Sscan(string(data), &token)
	return token, err == nil && bytes.HasSuffix(data, []byte(" end"))
}
