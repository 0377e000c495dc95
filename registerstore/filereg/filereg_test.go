package filereg

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/registerstore"
)

func put(t *testing.T, r *Register, key, value, version string) string {
	t.Helper()
	next, ok, err := r.Put(t.Context(), key, []byte(value), version)
	if err != nil || !ok {
		t.Fatalf("Put %q: %v, %v", key, ok, err)
	}
	return next
}

func TestAnOldVersionIsGoneForGood(t *testing.T) {
	t.Parallel()
	r := open(t, t.TempDir())
	first := put(t, r, "k", "a", "")
	if err := r.Delete(t.Context(), "k", "another"); err != nil {
		t.Fatal(err)
	}
	if _, version, _ := r.Get(t.Context(), "k"); version != first {
		t.Fatal("Delete with another version deleted")
	}
	for range 2 { // the second finds nothing
		if err := r.Delete(t.Context(), "k", first); err != nil {
			t.Fatal(err)
		}
	}
	refuse := func(version string) {
		t.Helper()
		if next, ok, err := r.Put(t.Context(), "k", []byte("late"), version); ok || err != nil || next != "" {
			t.Fatalf("Put with version %q: %q, %v, %v", version, next, ok, err)
		}
	}
	refuse(first)
	second := put(t, r, "k", "a", "")
	refuse(first)
	refuse("")
	third := put(t, r, "k", "a", second)
	refuse(second)
	if value, version, err := r.Get(t.Context(), "k"); string(value) != "a" || version != third || err != nil {
		t.Fatalf("%q, %q, %v", value, version, err)
	}
}

func TestNamesOfAnyBytes(t *testing.T) {
	t.Parallel()
	r := open(t, t.TempDir())
	keys := []string{"", ".", "..", "a", "A", "a.b", "a/b", "../a", "~new", "=", "%", "%61", "%2F", "ü", "a\x00b", "a\nb", "\xff", strings.Repeat("x", 254)}
	for _, key := range keys {
		put(t, r, key, "of "+key, "")
	}
	for _, key := range keys {
		if value, version, err := r.Get(t.Context(), key); string(value) != "of "+key || version == "" || err != nil {
			t.Fatalf("Get %q: %q, %v", key, value, err)
		}
	}
	all, err := r.List(t.Context(), "")
	slices.Sort(all)
	slices.Sort(keys)
	if err != nil || !slices.Equal(all, keys) {
		t.Fatalf("List: %q, %v", all, err)
	}
	if some, err := r.List(t.Context(), "a"); err != nil || len(some) != 5 {
		t.Fatalf("List with a prefix: %q, %v", some, err)
	}
	for _, long := range []string{strings.Repeat("x", 255), strings.Repeat("X", 100)} {
		if _, _, err := r.Put(t.Context(), long, nil, ""); !errors.Is(err, driver.ErrRefused) {
			t.Fatalf("Put of a key without room: %v", err)
		}
	}
	for _, name := range []string{"=%", "=%6", "=%6g", "=%61", "=%2f", "=A", "a", ""} {
		if key, ok := keyOf(name); ok {
			t.Errorf("%q is the file of %q", name, key)
		}
	}
}

func TestACallWhoseContextHasEndedDoesNothing(t *testing.T) {
	t.Parallel()
	r := open(t, t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 { // a select that draws lots is right now and then
		_, _, get := r.Get(ctx, "k")
		_, _, put := r.Put(ctx, "k", nil, "")
		_, list := r.List(ctx, "")
		_, _, watch := r.Watch(ctx, "k", "")
		for i, err := range []error{get, put, r.Delete(ctx, "k", "v"), list, watch} {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("call %d: %v", i, err)
			}
		}
	}
	if _, version, err := r.Get(t.Context(), "k"); version != "" || err != nil {
		t.Fatalf("%q, %v", version, err)
	}
}

func TestWhatIsNoStoreIsAnError(t *testing.T) {
	t.Parallel()
	r := open(t, filepath.Join(t.TempDir(), "some", "where"))
	put(t, r, "k", "v", "")
	path := filepath.Join(r.folder("k"), "=k")
	if err := errors.Join(os.Remove(path), os.WriteFile(path, []byte("by hand"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.Get(t.Context(), "k"); !errors.Is(err, driver.ErrRefused) {
		t.Fatalf("a file without a version: %v", err)
	}
	if err := os.RemoveAll(r.dir); err != nil {
		t.Fatal(err)
	}
	_, _, get := r.Get(t.Context(), "k")
	_, ok, put := r.Put(t.Context(), "k", nil, "")
	_, list := r.List(t.Context(), "")
	if get == nil || put == nil || ok || list == nil {
		t.Fatalf("in a directory that was removed: Get %v, Put %v %v, List %v", get, ok, put, list)
	}
	if err := os.WriteFile(r.dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(r.dir); err == nil || strings.Contains(err.Error(), "\n") {
		t.Fatalf("New over a file: %v", err)
	}
}

// What was not put on the disk is not acknowledged, nor read by anybody.
func TestASyncThatFailsAcknowledgesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r, other := open(t, dir), open(t, dir)
	first := put(t, r, "k", "old", "")
	broken, synced := errors.New("broken"), []string{}
	fail := -1
	r.disk.sync = func(f *os.File) error {
		if synced = append(synced, filepath.Base(f.Name())); len(synced) == fail {
			return broken
		}
		return f.Sync()
	}
	try := func(n int) error {
		synced, fail = nil, n
		_, ok, err := r.Put(t.Context(), "k", []byte("new"), first)
		if ok {
			t.Fatal("acknowledged")
		}
		return err
	}
	if err := try(1); !errors.Is(err, broken) || mustVersion(t, other, "k") != first || synced[0] != unfinished {
		t.Fatalf("the value is not on the disk: %v, %q", err, synced)
	}
	if err := try(2); !errors.Is(err, broken) || errors.Is(err, driver.ErrRefused) {
		t.Fatalf("the name is not on the disk: %v, %q", err, synced)
	}
	synced, fail = nil, 1
	if _, _, err := r.Get(t.Context(), "k"); !errors.Is(err, broken) {
		t.Fatalf("a reader before it is on the disk: %v", err)
	}
	if _, version, err := r.Get(t.Context(), "k"); err != nil || version == first || len(synced) != 2 {
		t.Fatalf("once it is: %q, %v, %q", version, err, synced)
	}
	if mustVersion(t, r, "k"); len(synced) != 2 {
		t.Fatalf("known to be on the disk, and synced again: %q", synced)
	}
}

func TestAStoreInMemorySaysThatItForgets(t *testing.T) {
	t.Parallel()
	dir := memory(t)
	if !strings.HasPrefix(dir, "/dev/shm") {
		t.Skip("no file system in memory here")
	}
	closed := false
	s, err := Open(dir, registerstore.Options{Warnings: []string{"mine"}, Close: func() error { closed = true; return nil }})
	if err != nil {
		t.Fatal(err)
	}
	if c := s.Caps(); c.Token != driver.TokenUntilLoss || len(c.Warnings) < 2 {
		t.Fatalf("%+v", c)
	}
	if err := s.Close(); err != nil || !closed {
		t.Fatal(err, closed)
	}
}

// watch waits in the background until key has another version.
func watch(t *testing.T, r *Register, key, version string) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		_, next, err := r.Watch(t.Context(), key, version)
		if err == nil && next == version {
			err = errors.New("Watch returned early")
		}
		done <- err
	}()
	return done
}

func TestWatch(t *testing.T) {
	t.Parallel()
	for name, deaf := range map[string]bool{"told": false, "polling": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			r, other := open(t, dir), open(t, dir)
			r.deaf = deaf
			within := func(done <-chan error) error {
				t.Helper()
				select {
				case err := <-done:
					return err
				case <-time.After(5 * time.Second):
					t.Fatal("Watch was told nothing")
					return nil
				}
			}
			version := ""
			for i := range 20 { // sometimes before it listens, sometimes after
				done := watch(t, r, "k", version)
				time.Sleep(time.Duration(i) * 100 * time.Microsecond)
				put(t, other, "neighbour", "v", mustVersion(t, other, "neighbour"))
				version = put(t, other, "k", "v", version)
				if err := within(done); err != nil {
					t.Fatal(err)
				}
			}
			done := watch(t, r, "k", version)
			time.Sleep(5 * time.Millisecond) // it should listen by now: else this proves less, and passes
			if err := other.Delete(t.Context(), "k", version); err != nil {
				t.Fatal(err)
			}
			if err := within(done); err != nil {
				t.Fatal(err)
			}
			done = watch(t, r, "k", "")
			time.Sleep(5 * time.Millisecond)
			if err := errors.Join(r.Close(), r.Close()); err != nil {
				t.Fatal(err)
			}
			if err := within(done); !errors.Is(err, errClosed) {
				t.Fatalf("Watch of a closed register: %v", err)
			}
		})
	}
}

func mustVersion(t *testing.T, r *Register, key string) string {
	t.Helper()
	_, version, err := r.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return version
}
