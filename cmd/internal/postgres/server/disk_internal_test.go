package server

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestFullDisks(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	other := t.TempDir()
	wal, space := filepath.Join(data, "pg_wal"), filepath.Join(data, "pg_tblspc", "16400")
	if err := errors.Join(os.Mkdir(wal, 0o700), os.Mkdir(filepath.Dir(space), 0o700),
		os.Symlink(other, space)); err != nil {
		t.Fatal(err)
	}
	free := map[string]uint64{data: leastFree, wal: leastFree, space: leastFree}
	check := func(devices int, want ...string) {
		t.Helper()
		n := 0
		got := full(data, func(path string) (uint64, any, error) {
			n++
			return free[path], n % devices, nil
		})
		if !slices.Equal(got, want) || n != 3 {
			t.Errorf("full: %v, want %v; %d were asked for", got, want, n)
		}
	}
	check(3)
	free[space]--
	check(3, other)
	free[data]--
	check(3, data, other)
	check(2, data) // with the tablespace on the same
	free[wal]--
	check(3, data, wal, other)
	check(1, data) // all on one
	if all := Full(data); slices.Contains(all, "") {
		t.Errorf("%q", all)
	}
	if all := full(data, func(string) (uint64, any, error) { return 0, 0, errors.New("gone") }); all != nil {
		t.Errorf("what is not known is full: %v", all)
	}
}
