package durable_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/primacy-go/primacy/cmd/internal/postgres/durable"
)

func TestReplace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state")
	for _, want := range []string{"one", "a longer one", ""} {
		if err := durable.Replace(path, []byte(want)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("%d files are left", len(entries))
	}
}

func TestReplaceThatFailsLeavesTheOldFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "folder") // a file cannot take the place of a folder that is not empty
	if err := os.MkdirAll(filepath.Join(path, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	if durable.Replace(path, []byte("x")) == nil {
		t.Error("a folder was replaced")
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("%d files are left", len(entries))
	}
}

func TestJSON(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	got := map[string]int{"as": 1}
	if there, err := durable.ReadJSON(path, &got, "remove it"); there || err != nil || got["as"] != 1 {
		t.Errorf("a file that is missing: %v, %v, %v", got, there, err)
	}
	if err := durable.WriteJSON(path, map[string]int{"is": 2}); err != nil {
		t.Fatal(err)
	}
	if there, err := durable.ReadJSON(path, &got, "remove it"); !there || err != nil || got["is"] != 2 {
		t.Errorf("%v, %v, %v", got, there, err)
	}
	if err := durable.WriteJSON(path, func() {}); err == nil {
		t.Error("a function was written")
	}
	for _, text := range []string{"", "{", "[]", "{} {}", "\x00\x00"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		there, err := durable.ReadJSON(path, &got, "remove it")
		if !there || err == nil || !strings.HasPrefix(err.Error(), path+" is damaged: ") ||
			!strings.HasSuffix(err.Error(), ": remove it") {
			t.Errorf("%q: %v, %v", text, there, err)
		}
	}
	// What cannot be read is not missing.
	if there, err := durable.ReadJSON(filepath.Dir(path), &got, "remove it"); !there || err == nil {
		t.Errorf("a folder: %v, %v", there, err)
	}
}

func TestRemove(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // what is not there is removed
		if err := durable.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("it is still there")
	}
}
