package page

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
)

// What is copied is what a shell understands, and nothing else than what is seen.
func TestACommandIsOneForAShell(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip(err)
	}
	for _, name := range []string{"billing", "a b", "it's", "$(reboot)", "`reboot`", "-o", "a;b", `back\slash`,
		"\u202eevil", "é",
		"\u202e'\\", "*", "~", "#a", "!!", "=ls"} {
		line := command("resign", name)
		out, err := exec.Command(bash, "-c", "primacy() { printf '%s\n' \"$@\"; }; "+line).Output()
		want := "resign\n" + name + "\n"
		if name[0] == '-' {
			want = "resign\n--\n" + name + "\n"
		}
		if err != nil || string(out) != want {
			t.Errorf("%s is understood as %q (%v)", line, out, err)
		}
		if strings.Contains(line, "\u202e") {
			t.Errorf("%q turns the line around", line)
		}
	}
}

// After -- nothing is a flag: flags stand before it.
func TestACommandForANameLikeAFlag(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{command("transfer", "billing", "--to", "web-2"), "primacy transfer billing --to web-2"},
		{command("transfer", "-o", "--to", "-x"), "primacy transfer --to -x -- -o"},
		{command("cron run", "-o"), "primacy cron run -- -o"},
		{command("pause", "--all", "--reason", "WHY"), "primacy pause --reason WHY -- --all"},
		{pauseCommand("", "pause", "--reason", "WHY"), "primacy pause --all --reason WHY"},
		{command("doctor", ""), "primacy doctor"},
	} {
		if c.got != c.want {
			t.Errorf("%s, want %s", c.got, c.want)
		}
	}
}

// unrecorded is a store whose histories cannot be read.
type unrecorded struct{ *memstore.Store }

func (u unrecorded) Records(context.Context, string, string, int) ([]driver.Record, error) {
	return nil, fmt.Errorf("%w: no permission", driver.ErrRefused)
}

// A history that cannot be read is not an empty one.
func TestAHistoryThatCannotBeReadIsNotEmpty(t *testing.T) {
	within(t, Options{}, func(s *site) {
		s.stands("web-1", "billing", "")
		own, err := primacy.NewSession(unrecorded{s.store}, &primacy.Options{ID: "reader"})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = own.Close(s.Context()) }()
		s.records.session = own
		path := "/ui/election?name=billing&at=" + time.Now().UTC().Truncate(time.Second).Format(time.RFC3339)
		got := s.wants(s.get(path), 200, "It cannot be told here.", "could not be read", "no permission")
		for _, no := range []string{"Nothing is recorded", "Locks have no history", "Leads or holds"} {
			if strings.Contains(got.text, no) {
				t.Errorf("it says %q", no)
			}
		}
		if j := s.get(path, "Accept", "application/json"); !strings.Contains(j.text, `"error":"The history could not`) {
			t.Errorf("in JSON: %s", j.text)
		}
	})
}

func TestAnInstantThatCannotBeShown(t *testing.T) {
	within(t, Options{}, func(s *site) {
		s.stands("web-1", "billing", "")
		for _, at := range []string{"0000-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"} {
			s.wants(s.get("/ui/election?name=billing&at="+at), 400, "This is no time")
		}
	})
}
