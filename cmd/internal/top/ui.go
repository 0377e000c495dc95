package top

import (
	"slices"
	"time"

	"github.com/primacy-go/primacy"
)

// mode is what keys mean at present.
type mode int

const (
	browsing mode = iota
	filtering
	helping // the help is shown
	asking  // a dialog
)

// ui is the page and what its keys do. It knows no terminal: keys go in, pictures come out.
type ui struct {
	store string
	watch *watcher
	ascii bool
	now   func() time.Time
	said  func(name string, e primacy.Entry) string
	can   bool // the store carries requests to leaders

	w, h     int
	view     *view
	rows     []*row // as they are shown: filtered and sorted
	selected string
	first    int // row of the list on the screen
	filter   string
	mode     mode
	scrolled int // lines of the help
	dialog   *dialog
	message  string
	bad      bool // the message says that something failed

	act     func(Action) // starts what was confirmed
	busy    bool         // it runs
	quit    bool
	suspend bool // ^Z was pressed
	redraw  bool // ^L was
}

// Action is what an operator has asked for and confirmed.
type Action struct {
	Verb   string        // transfer, resign or drain
	State  primacy.State // of the election, as it was shown; of drain the first one that the member leads
	To     string        // the successor; of drain the member
	Reason string
}

// refresh takes the picture at present.
func (u *ui) refresh() {
	u.view = u.watch.view()
	u.rows = slices.DeleteFunc(slices.Clone(u.view.rows), func(r *row) bool {
		return u.filter != "" &&
			!r.matches(u.filter)
	})
	arrange(u.rows)
	if u.dialog != nil {
		u.dialog.look(u.view)
	}
}

// age is how old the picture is. A clock may have been set, and the machine may have slept: the
// larger of both counts.
func (u *ui) age() time.Duration { return age(u.view.asOf, u.now()) }

func age(asOf, now time.Time) time.Duration {
	return max(now.Sub(asOf), now.Round(0).Sub(asOf.Round(0)))
}

// stale says whether the picture must not look live.
func (u *ui) stale() bool {
	lasts := u.view.every + atLeast
	if u.view.err == nil {
		lasts = max(lasts, u.view.lasts)
	}
	return u.view.asOf.IsZero() || u.age() > lasts
}

// current returns the selected row, or nil if there is none. Where it is gone, the one in its place
// is selected.
func (u *ui) current() *row {
	if len(u.rows) == 0 {
		return nil
	}
	return u.rows[u.position()]
}

func (u *ui) position() int {
	i := slices.IndexFunc(u.rows, func(r *row) bool { return r.name == u.selected })
	if i < 0 {
		i = min(u.first, len(u.rows)-1)
	}
	return i
}

// choose selects a row by its number.
func (u *ui) choose(i int) {
	if len(u.rows) > 0 {
		u.selected = u.rows[min(max(i, 0), len(u.rows)-1)].name
	}
}

func (u *ui) say(bad bool, text string) { u.message, u.bad = text, bad }

// press does what a key asks for.
func (u *ui) press(key string) {
	switch key {
	case keyQuit:
		u.quit = true
		return
	case keyStop:
		u.suspend = true
		return
	case keyDraw:
		u.redraw = true
		return
	}
	switch u.mode {
	case browsing:
		u.browse(key)
	case filtering:
		u.typeFilter(key)
	case helping:
		u.scroll(key)
	case asking:
		if u.dialog.press(key) {
			u.endDialog()
		}
	}
}

func (u *ui) browse(key string) {
	page := max(u.listHeight()-1, 1)
	at := 0
	if len(u.rows) > 0 {
		at = u.position()
	}
	switch key {
	case keyUp, "k":
		u.choose(at - 1)
	case keyDown, "j":
		u.choose(at + 1)
	case keyPgUp:
		u.choose(at - page)
	case keyPgDn, " ":
		u.choose(at + page)
	case keyHome, "g":
		u.choose(0)
	case keyEnd, "G":
		u.choose(len(u.rows) - 1)
	case "?", "h":
		u.mode, u.scrolled = helping, 0
	case "/":
		u.mode = filtering
	case keyEsc:
		u.filter, u.message = "", ""
		u.refresh()
	case "t", "r", "d":
		u.ask(key)
	case "q":
		u.quit = true
	}
}

func (u *ui) typeFilter(key string) {
	switch key {
	case keyEnter:
		u.mode = browsing
	case keyEsc:
		u.mode, u.filter = browsing, ""
	default:
		u.filter = edit(u.filter, key)
	}
	u.refresh()
	u.first = 0
	if u.mode == filtering {
		u.choose(0)
	}
}

// edit does what a key does to a line of text.
func edit(text, key string) string {
	switch {
	case key == keyClear:
		return ""
	case key == keyBack:
		if r := []rune(text); len(r) > 0 {
			return string(r[:len(r)-1])
		}
	case isLetter(key) && len(text)+len(key) <= primacy.MaxName:
		return text + key
	}
	return text
}

// isLetter says whether a key is a letter, not one with a name.
func isLetter(key string) bool { return len([]rune(key)) == 1 }

func (u *ui) scroll(key string) {
	switch key {
	case keyUp, "k":
		u.scrolled--
	case keyDown, "j":
		u.scrolled++
	case keyPgUp:
		u.scrolled -= max(u.h-3, 1)
	case keyPgDn, " ":
		u.scrolled += max(u.h-3, 1)
	case keyHome, "g":
		u.scrolled = 0
	case keyEsc, keyEnter, "q", "?":
		u.mode = browsing
	}
}

// ask opens the dialog of a key, where there is something to ask for.
func (u *ui) ask(key string) {
	r := u.current()
	d, why := newDialog(key, r)
	switch {
	case r == nil:
		why = "nothing is selected"
	case !u.can:
		why = u.store + " carries no requests to leaders; stop the leader where it runs"
	case u.busy:
		why = "one thing at a time: the last request is still under way"
	case u.stale():
		why = "the store does not answer: nothing can be asked now"
	}
	if why != "" {
		u.say(true, why)
		return
	}
	u.choose(u.position())
	u.message, u.dialog, u.mode = "", d, asking
}

// endDialog starts what was confirmed, or says why it was not.
func (u *ui) endDialog() {
	d := u.dialog
	u.dialog, u.mode = nil, browsing
	switch {
	case d.failure != "":
		u.say(true, d.failure+": nothing was asked")
	case !d.confirmed:
		u.say(false, "nothing was asked")
	default:
		u.busy = true
		u.say(false, d.doing())
		u.act(Action{Verb: d.verb, State: d.state, To: d.chosen(), Reason: d.reason})
	}
}

// done tells what became of it.
func (u *ui) done(bad bool, text string) {
	u.busy = false
	u.say(bad, text)
}
