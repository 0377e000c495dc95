package top

import (
	"reflect"
	"strings"
	"testing"

	"github.com/primacy-go/primacy"
)

func TestTransferByKeys(t *testing.T) {
	p := aFleet(t, 80, 24)
	p.selected = "billing/invoicer"
	p.presses("t")
	p.shows("transfer billing/invoicer from web-1 (token 1843)", "> web-2", "  web-3")
	p.presses("j", "j", keyEnter)
	p.types("kernel update")
	p.presses(keyEnter)
	p.shows("> web-3", "kernel update", "to do it, type the name: billing/invoicer")
	p.types("billing/invoice")
	p.presses(keyEnter)
	p.shows("that is not the name")
	if len(p.actions) > 0 {
		t.Fatalf("done without the name: %+v", p.actions)
	}
	p.types("billing/invoicer")
	p.presses(keyEnter)
	want := []Action{{Verb: "transfer", State: p.states[0], To: "web-3", Reason: "kernel update"}}
	if !reflect.DeepEqual(p.actions, want) {
		t.Fatalf("got %+v, want %+v", p.actions, want)
	}
	p.shows("asked web-1 to hand billing/invoicer over to web-3 ...")
	p.presses("r")
	p.shows("one thing at a time")
	p.done(false, "billing/invoicer: web-3 leads now")
	p.shows("billing/invoicer: web-3 leads now")
	p.presses(keyEsc)
	p.shows("q quit")
}

func TestResignAndDrainByKeys(t *testing.T) {
	p := aFleet(t, 80, 24)
	p.selected = "shard-1"
	p.presses("r", keyEnter)
	p.types("shard-1")
	p.presses(keyEnter)
	p.done(false, "")
	p.presses("d", "j")
	p.shows("drain: move all that one member leads", "  web-3", "> web-1")
	p.presses(keyEnter)
	p.types("reboot")
	p.presses(keyEnter)
	p.types("web-1")
	p.presses(keyEnter)
	want := []Action{{Verb: "resign", State: p.states[3]}, {Verb: "drain", State: p.states[3], To: "web-1",
		Reason: "reboot"}}
	if !reflect.DeepEqual(p.actions, want) {
		t.Errorf("got %+v, want %+v", p.actions, want)
	}
}

func TestWhatCannotBeAsked(t *testing.T) {
	p := aFleet(t, 80, 24)
	shared := state("pool", "web-1", 5, "web-2")
	shared.Leader.Slots = 2
	foreign := state("etcd", "", 0)
	foreign.Leader = &primacy.Entry{Value: []byte("v"), Token: 3, Held: true}
	p.states = append(p.states, shared, foreign)
	p.reads()
	for _, c := range []struct{ name, key, want string }{
		{"deploy", "t", "nobody leads"}, {"deploy", "r", "nobody leads"},
		{"shard-2", "t", "nobody whose ID is known waits"},
		{"pool", "t", "a shared lock does not move"}, {"etcd", "r", "entered by another program"},
		{"etcd", "d", "no candidate here has a known ID"},
	} {
		p.selected = c.name
		p.presses(c.key)
		p.shows(c.want)
		if p.mode != browsing {
			t.Errorf("%s on %s opened a dialog", c.key, c.name)
		}
	}
	p.can = false
	p.presses("d")
	p.shows("carries no requests to leaders")
	p.states = nil
	p.watch.tracks = map[string]*track{}
	p.reads()
	p.presses("t")
	p.shows("nothing is selected", "Start one: primacy run NAME")
}

// The request is for the term that was shown: while the dialog is open, it may end.
func TestTheTermEndsWhileTheDialogIsOpen(t *testing.T) {
	p := aFleet(t, 80, 24)
	p.selected = "billing/invoicer"
	p.presses("t", keyEnter, keyEnter)
	p.types("billing/invoicer")
	p.states[0] = state("billing/invoicer", "web-2", 1844, "web-3")
	p.reads()
	p.shows("the leader has changed meanwhile: press any key")
	p.presses(keyEnter)
	p.shows("the leader has changed meanwhile: nothing was asked")
	p.presses("t", keyEnter, keyEnter)
	p.states[0] = state("billing/invoicer", "web-2", 1844, "web-9")
	p.reads()
	p.shows("it is not waiting any more")
	p.presses(keyEsc)
	p.shows("nothing was asked")
	if len(p.actions) > 0 {
		t.Errorf("asked: %+v", p.actions)
	}
}

// A name that cannot be typed as it is shown is confirmed by the token.
func TestAnOddNameIsConfirmedByItsToken(t *testing.T) {
	for _, name := range []string{"a\x1b[2Jb", "x\u202ey", "a·b", " a", strings.Repeat("long", 20), "\xff",
		"e\u0301\u0302\u0303\u0304"} {
		p := newPage(t, 80, 24)
		p.states = []primacy.State{state(name, "web-1", 77, "web-2")}
		p.reads()
		p.presses("r", keyEnter)
		p.shows("to do it, type the token: 77")
		p.types("77")
		p.presses(keyEnter)
		if len(p.actions) != 1 || p.actions[0].State.Name != name {
			t.Errorf("%q: %+v", name, p.actions)
		}
	}
	for _, name := range []string{"grün/日本", "a b", "e\u0301", "שלום"} {
		p := newPage(t, 80, 24)
		p.states = []primacy.State{state(name, "web-1", 77)}
		p.reads()
		p.presses("r", keyEnter)
		p.shows("type the name: " + name)
		p.types(name)
		p.presses(keyEnter)
		if len(p.actions) != 1 {
			t.Errorf("%q: %+v", name, p.actions)
		}
	}
}
