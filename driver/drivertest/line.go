package drivertest

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/primacy-go/primacy/driver"
)

var lineClauses = []Clause{
	{Name: "a name never used has an empty line", Check: lineEmpty},
	{Name: "a line is never older than its call", Check: lineFresh},
	{Name: "revision 0 is older than every line, also one never used", Check: nextFromZero},
	{Name: "the next line is told at once where it differs already", Check: nextAtOnce},
	{Name: "the next line is waited for while nothing changes", Check: nextBlocks},
	{Name: "the next line is told when a claim enters, changes its value, or leaves", Check: nextTells},
	{Name: "the next line is told when a lease ends", Check: nextExpiry, slow: true},
	{Name: "who asks late finds the present state", Check: nextLate},
	{Name: "lines never go back while they are followed", Check: nextForward},
	{Name: "a change of one line does not wake those who follow another", Check: nextOther},
	{Name: "names are listed by prefix and in order, without those in which nobody stands", Check: lists},
	{Name: "a list that is read again has what has changed since", Check: listsAgain},
}

func lineEmpty(t *testing.T, h Harness) {
	s, name := open(t, h), unique()
	for range 2 {
		if ln := line(t, s, name); ln.Name != name || ln.Holder != nil || len(ln.Waiters) != 0 {
			t.Errorf("line of a name never used = %+v, want it empty", ln)
		}
	}
}

func lineFresh(t *testing.T, h Harness) {
	s, watches := open(t, h), open(t, h)
	need(t, s.Caps().Linearizable, "a store that reads linearizably")
	l, name := grant(t, s, "a"), unique()
	for range 20 {
		before := line(t, watches, name)
		p := enter(t, l, name)
		during := line(t, watches, name)
		if during.Holder == nil || during.Holder.Token != p.Token || during.Revision <= before.Revision {
			t.Fatalf("line after Claim = %+v, want token %d and a revision above %d", during, p.Token, before.Revision)
		}
		release(t, l, p)
		if after := line(t, watches, name); after.Holder != nil || after.Revision <= during.Revision {
			t.Fatalf("line after Release = %+v, want it empty and a revision above %d", after, during.Revision)
		}
	}
}

// told is the result of a Next.
type told struct {
	line driver.Line
	err  error
}

// following starts a Next.
func following(t *testing.T, s driver.Store, name string, after uint64) <-chan told {
	done, ctx := make(chan told, 1), soon(t)
	go func() {
		ln, err := s.Next(ctx, name, after)
		done <- told{ln, err}
	}()
	return done
}

// newer fails the test unless the line is newer than before.
func (n told) newer(t *testing.T, before uint64) driver.Line {
	t.Helper()
	if n.err != nil || n.line.Revision <= before {
		t.Fatalf("Next after revision %d = %+v, %v, want a newer line", before, n.line, n.err)
	}
	return n.line
}

func nextFromZero(t *testing.T, h Harness) {
	s, name := open(t, h), unique()
	ln := (<-following(t, s, name, 0)).newer(t, 0)
	if ln.Name != name || ln.Holder != nil {
		t.Errorf("Next of a name never used = %+v, want its empty line", ln)
	}
}

func nextAtOnce(t *testing.T, h Harness) {
	s, name := open(t, h), unique()
	before := line(t, s, name)
	p := enter(t, grant(t, open(t, h), "a"), name)
	ln := (<-following(t, s, name, before.Revision)).newer(t, before.Revision)
	if ln.Holder == nil || ln.Holder.Token != p.Token {
		t.Errorf("Next = %+v, want token %d to hold", ln, p.Token)
	}
}

func nextBlocks(t *testing.T, h Harness) {
	s, name := open(t, h), unique()
	l := grant(t, s, "a")
	empty := line(t, s, name)
	first := following(t, s, name, empty.Revision)
	silent(t, "Next returned though nothing happened", first)
	enter(t, l, name)
	held := (<-first).newer(t, empty.Revision)
	second := following(t, s, name, held.Revision)
	if err := l.Renew(soon(t)); err != nil {
		t.Fatalf("Renew: %v", err)
	}
	silent(t, "Next returned though the lease was only renewed", second)
}

func nextTells(t *testing.T, h Harness) {
	s, acts, name := open(t, h), open(t, h), unique()
	l, other := grant(t, acts, "a"), grant(t, acts, "b")
	var p, q driver.Place
	steps := []struct {
		what string
		do   func()
	}{
		{"Claim", func() { p = enter(t, l, name) }},
		{"Claim of a second", func() { q = enter(t, other, name) }},
		{"Update", func() {
			if err := l.Update(soon(t), p, []byte("new")); err != nil {
				t.Fatalf("Update: %v", err)
			}
		}},
		{"Release", func() { release(t, l, p) }},
		{"Release of the last", func() { hold(t, other, q); release(t, other, q) }},
	}
	at := line(t, s, name)
	for _, step := range steps {
		if step.what == "Claim of a second" && !s.Caps().FIFO {
			step.do() // without a line nobody sees who waits
			continue
		}
		if step.what == "Release of the last" && !s.Caps().FIFO {
			hold(t, other, q) // nobody saw him wait: that he holds is a change, which may be over before anybody looks
			at = line(t, s, name)
		}
		next := following(t, s, name, at.Revision)
		step.do()
		at = (<-next).newer(t, at.Revision)
	}
	// The release of the last may have been told in two states: nobody, or first the one who came
	// to hold.
	for at.Holder != nil {
		at = (<-following(t, s, name, at.Revision)).newer(t, at.Revision)
	}
}

func nextExpiry(t *testing.T, h Harness) {
	s, name := open(t, h), unique()
	mortal(t, h, open(t, h), name)
	free(t, s, name)
}

func nextLate(t *testing.T, h Harness) {
	s, name := open(t, h), unique()
	before := line(t, s, name)
	l := grant(t, open(t, h), "a")
	var p driver.Place
	for range 4 { // each new ID replaces the one before
		p = hold(t, l, enter(t, l, name))
	}
	ln := (<-following(t, s, name, before.Revision)).newer(t, before.Revision)
	for ln.Holder == nil || ln.Holder.Token != p.Token { // no state older than the call, where reads are linearizable
		if s.Caps().Linearizable {
			t.Fatalf("Next, asked late = %+v, want the present state: token %d", ln, p.Token)
		}
		ln = (<-following(t, s, name, ln.Revision)).newer(t, ln.Revision)
	}
}

func nextForward(t *testing.T, h Harness) {
	s, name := open(t, h), unique()
	acts := open(t, h)
	l := grant(t, acts, "a")
	ctx, cancel := context.WithCancel(soon(t))
	defer cancel()
	go func() {
		for i := 0; i < 30 && ctx.Err() == nil; i++ {
			places, err := l.Claim(ctx, driver.Claim{Name: name, ID: unique()})
			if err == nil && i == 29 {
				err = l.Update(ctx, places[0], []byte("end"))
			}
			if err != nil {
				cancel() // and the follower below says what it missed
			}
		}
	}()
	var at driver.Line
	var token uint64
	for at.Holder == nil || string(at.Holder.Value) != "end" {
		at = (<-following(t, s, name, at.Revision)).newer(t, at.Revision)
		if at.Holder != nil {
			if at.Holder.Token < token {
				t.Fatalf("holder's token went from %d back to %d", token, at.Holder.Token)
			}
			token = at.Holder.Token
		}
	}
}

func nextOther(t *testing.T, h Harness) {
	s, name := open(t, h), unique()
	l := grant(t, s, "a")
	enter(t, l, name)
	next := following(t, s, name, line(t, s, name).Revision)
	for _, other := range []string{name + "/b", name + "b", unique()} {
		release(t, l, enter(t, l, other))
	}
	silent(t, "Next returned though only other lines changed", next)
}

func lists(t *testing.T, h Harness) {
	s := open(t, h)
	base := unique()
	a, b := grant(t, s, "a"), grant(t, open(t, h), "b")
	want := []string{base + "/a", base + "/b", base + "/b/c", base + "/d"}
	for _, name := range []string{want[2], want[0], want[3], want[1], base, "x" + base} {
		enter(t, a, name)
	}
	enter(t, b, want[1])
	release(t, b, enter(t, b, base+"/gone"))
	line(t, s, base+"/never")
	lines, err := s.Lines(soon(t), base+"/")
	if err != nil {
		t.Fatalf("Lines: %v", err)
	}
	var got []string
	for _, ln := range lines {
		got = append(got, ln.Name)
		if ln.Holder == nil || ln.Holder.Lease != a.ID() || ln.Revision == 0 {
			t.Errorf("listed line = %+v, want lease %s to hold", ln, a.ID())
		}
		if s.Caps().FIFO && ln.Name == want[1] && (len(ln.Waiters) != 1 || ln.Waiters[0].Lease != b.ID()) {
			t.Errorf("listed line = %+v, want lease %s to wait", ln, b.ID())
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("Lines = %s, want %s", strings.Join(got, " "), strings.Join(want, " "))
	}
	if all, err := s.Lines(soon(t), ""); err != nil || len(all) < len(want)+2 {
		t.Errorf("Lines of every prefix = %d lines, %v, want at least %d", len(all), err, len(want)+2)
	}
}

func listsAgain(t *testing.T, h Harness) {
	s, other := open(t, h), open(t, h)
	base := unique()
	a, b := grant(t, other, "a"), grant(t, other, "b")
	shows := func(what string, want ...string) {
		t.Helper()
		var got []string
		reads := func() bool {
			lines, err := s.Lines(soon(t), base+"/")
			if err != nil {
				t.Fatalf("Lines: %v", err)
			}
			got = nil
			for _, ln := range lines {
				if ln.Holder == nil {
					t.Fatalf("listed line = %+v, want one that somebody holds", ln)
				}
				got = append(got, strings.TrimPrefix(ln.Name, base+"/")+" "+ln.Holder.Owner+string(ln.Holder.Value))
				ln.Holder.Owner = "of a caller who changes his copy"
			}
			return slices.Equal(got, want)
		}
		if !s.Caps().Linearizable {
			eventually(t, "the list after "+what, reads)
		}
		for range 3 {
			if !reads() {
				t.Fatalf("after %s: Lines = %q, want %q", what, got, want)
			}
		}
	}
	one, two := enter(t, a, base+"/1"), enter(t, a, base+"/2")
	shows("two claims", "1 a", "2 a")
	if err := a.Update(soon(t), one, []byte("+")); err != nil {
		t.Fatalf("Update: %v", err)
	}
	shows("a new value", "1 a+", "2 a")
	release(t, a, two)
	shows("a release", "1 a+")
	release(t, a, one)
	enter(t, b, base+"/1")
	shows("another holder", "1 b")
	release(t, a, enter(t, a, base+"/3"))
	shows("a claim that came and went", "1 b")
	if err := b.Close(soon(t)); err != nil {
		t.Fatalf("Close: %v", err)
	}
	three := enter(t, a, base+"/3")
	shows("one claim instead of another", "3 a")
	release(t, a, three)
	shows("the last release")
}
