package agent

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
)

func TestHowFarTheWALHasBeenIsKept(t *testing.T) {
	dir := t.TempDir()
	n, w := notes{dir: dir}, states{dir: dir}
	if err := w.next()(core.State{Incarnation: "a", Sealed: 4, Last: core.Position{Timeline: 9}}); err != nil {
		t.Fatal(err)
	}
	for _, p := range []position{
		{"a", core.Position{}, 0, 0}, {"a", core.Position{Timeline: 3, LSN: 100}, 130, 3},
		{"a", core.Position{Timeline: 3, LSN: 90}, 130, 3}, {"a", core.Position{Timeline: 3, LSN: 90}, 120, 5},
	} {
		if err := n.write(p); err != nil {
			t.Fatal(err)
		}
	}
	s, heard, err := readState(dir)
	if err != nil || s.Last != (core.Position{Timeline: 3, LSN: 100}) || s.Sealed != 4 {
		t.Errorf("%+v, %v", s, err)
	}
	if heard != (core.Position{Timeline: 5, LSN: 120}) {
		t.Errorf("the primary's WAL was heard to end at %v, want what it said last", heard)
	}
	// What another incarnation has had says nothing of this one.
	if err := w.next()(core.State{Incarnation: "b"}); err != nil {
		t.Fatal(err)
	}
	if s, _, err := readState(dir); err != nil || s.Last != (core.Position{}) {
		t.Errorf("%+v, %v", s, err)
	}
	if err := os.WriteFile(filepath.Join(dir, positionFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := readState(dir); err == nil {
		t.Error("a file that is damaged counts as none")
	}
}

// A write that waited for a disk that hung does not take the place of a later one.
func TestALateStateIsNotWritten(t *testing.T) {
	w := states{dir: t.TempDir()}
	first, second := w.next(), w.next()
	if err := second(core.State{Incarnation: "a", Sealed: 9}); err != nil {
		t.Fatal(err)
	}
	if err := first(core.State{Incarnation: "a", Sealed: 4}); err == nil {
		t.Error("an older state was written")
	}
	if s, _, err := readState(w.dir); err != nil || s.Sealed != 9 {
		t.Errorf("%+v, %v", s, err)
	}
}
