package agent

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
)

// A member that has left is nobody of its former cluster: others write to its data from then on.
func TestWhoHasLeftHasNoIncarnation(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(beside(data), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, as := range []core.Adoption{core.AdoptedStandby, core.AdoptedPrimary} {
		s, err := Adopted(data, "s", "here", as)
		if err != nil {
			t.Fatal(err)
		}
		if err := Keep(data, s); err != nil {
			t.Fatal(err)
		}
		was, err := StateOf(data)
		if err != nil || was.Incarnation == "" || was.Adopted != as || was.SystemID != "s" || was.Directory != "here" {
			t.Fatalf("adopted: %+v, %v", was, err)
		}
		for range 2 { // a second try
			if err := Leave(data); err != nil {
				t.Fatal(err)
			}
			if now, err := StateOf(data); err != nil || now != (core.State{}) {
				t.Errorf("a member that has left knows %+v, %v", now, err)
			}
			if left, err := Left(data); err != nil || left != was {
				t.Errorf("it was %+v, and is said to have been %+v, %v", was, left, err)
			}
		}
	}
}
