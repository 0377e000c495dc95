package core

import (
	"os"
	"strings"
	"testing"
	"time"
)

// What hangs is told before anything is done about it, and no longer than it lasts.
func TestWhatHangsIsTold(t *testing.T) {
	why := func(r *rig, want string) {
		t.Helper()
		r.Step(r.o)
		if _, got := r.Phase(); want == "" && got != "" || !strings.HasPrefix(got, want) {
			t.Errorf("it says %q, want %q", got, want)
		}
	}
	r := newRig(t)
	r.following()
	r.o.Server.Follows = false
	r.o.Now += tellAfter / 2
	why(r, "")
	r.o.Now += tellAfter
	why(r, "no WAL comes from a: ")
	r.o.Server.Follows = true
	why(r, "")

	r = newRig(t)
	r.leading()
	r.o.Server.Waiting = tellAfter - time.Millisecond
	why(r, "")
	r.o.Server.Waiting = tellAfter
	why(r, "commits wait for standbys")
	r.o.Server.Waiting = 0
	why(r, "")

	r = newRig(t)
	r.following()
	r.why = "rewind: it failed once, and the data were copied then"
	why(r, "")
	r.o.Server.Primary, r.o.Server.Follows = true, false
	why(r, "its server was promoted by hand: ")
}

// Whoever reads it finds what to type.
func TestWhatIsToldHasItsRow(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/postgres-failover.md")
	if err != nil {
		t.Fatal(err)
	}
	o := Observation{Now: tellAfter, Record: &Record{Primary: Identity{Name: "…"}}}
	for _, text := range []string{(&serverRun{}).tells(o, ""), Server{Waiting: tellAfter}.tells(), wasTaken,
		noRoom} {
		text, _, _ = strings.Cut(text, ": ")
		if !strings.Contains(string(page), "\n| `"+text) || text == "" {
			t.Errorf("no row begins with %q", text)
		}
	}
}
