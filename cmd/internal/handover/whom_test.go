package handover

import (
	"slices"
	"strings"
	"testing"

	"github.com/primacy-go/primacy"
)

func TestHostOf(t *testing.T) {
	for id, want := range map[string]string{
		"web-2-4711-0a1f": "web-2", "web-4711-0a1f": "web", "web-2.example.com-1-ffff": "web-2.example.com",
		"web-2": "", "web-2-47111": "", "web-2-4711-0a1": "", "web-2-4711-0A1F": "", "web-2--0a1f": "",
		"web-2-pid-0a1f": "", "": "", "-1-abcd": "",
	} {
		if got := HostOf(id); got != want {
			t.Errorf("HostOf(%q) = %q, want %q", id, got, want)
		}
	}
}

func TestFind(t *testing.T) {
	of := func(leader string, waiting ...string) primacy.State {
		st := primacy.State{Name: "n", Leader: &primacy.Entry{ID: leader}}
		for _, id := range waiting {
			st.Waiting = append(st.Waiting, primacy.Entry{ID: id})
		}
		return st
	}
	states := []primacy.State{
		of("web-2-71-aa01", "", "web-71-aa02", "web-2-72-aa03"),
		of("db.a.net-1-aa04", "web-2-71-aa01", "db.b.net-1-aa05", "Mail.a.net-9-aa06", "web-2"),
		of("cache-1-aa07", "cache.a.net-1-aa08"),
	}
	for word, want := range map[string]string{
		"web":           "web-71-aa02",
		"web-2":         "web-2-71-aa01 web-2-72-aa03 web-2", // the ID too
		"WEB-2":         "web-2-71-aa01 web-2-72-aa03",
		"web-2.a.net":   "web-2-71-aa01 web-2-72-aa03",
		"web-2-71-aa01": "web-2-71-aa01",
		"mail":          "Mail.a.net-9-aa06",
		"db.a.net":      "db.a.net-1-aa04",
		"db":            "ERROR db.a.net, db.b.net",
		"cache":         "cache-1-aa07", // the whole name before one that it shortens
		"we":            "", "a.net": "", "": "",
	} {
		whom, err := Find(word, states)
		got := strings.Join(whom.In(states), " ")
		if failed, all, _ := strings.Cut(want, " "); failed == "ERROR" {
			if err == nil || !strings.Contains(err.Error(), all) {
				t.Errorf("%q: got %q, %v, want an error with %q", word, got, err, all)
			}
		} else if err != nil || got != want {
			t.Errorf("%q: got %q, %v, want %q", word, got, err, want)
		}
	}
	if got := Only("web-2").In(states); !slices.Equal(got, []string{"web-2"}) {
		t.Errorf("only the ID: %q", got)
	}
}
