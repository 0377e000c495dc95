package top

import (
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy"
)

func TestGlyphs(t *testing.T) {
	for _, c := range []struct {
		in, want, ascii string
		width           int
	}{
		{"web-1.example:80", "web-1.example:80", "web-1.example:80", 16},
		{"a\x1b[2Jb\r\n\x00", "a·[2Jb···", "a.[2Jb...", 9},
		{"\u009b31m", "·31m", ".31m", 4},
		{"\u202egnp.exe", "·gnp.exe", ".gnp.exe", 8},
		{"日本", "日本", "..", 4},
		{"🙂", "🙂", ".", 2},
		{"👩\u200d🚀", "👩·🚀", "...", 5}, // joined, it is as wide as the terminal likes
		{"❤\ufe0f", "❤·", "..", 2},
		{"e\u0301x", "e\u0301x", "e.x", 2},
		{"\u0301x", "·x", ".x", 2},
		{"z" + strings.Repeat("\u0300", 50), "z\u0300\u0300\u0300", "z" + strings.Repeat(".", 50), 1},
		{"\xff\xfe", "··", "..", 2},
		{"שלום", "שלום", "....", 4},
		{"\u200b\ufeff\u00ad\u3164\u115f", "·····", ".....", 5},
		{"\u1112\u1161", "\u1112·", "..", 3},
	} {
		for _, ascii := range []bool{false, true} {
			got, want := "", c.want
			gs := glyphs(c.in, ascii)
			for _, g := range gs {
				got += g.text
			}
			if ascii {
				want = c.ascii
			}
			if got != want || !ascii && widthOf(gs) != c.width {
				t.Errorf("%q, ASCII %v: %q of %d cells, want %q of %d", c.in, ascii, got, widthOf(gs), want, c.width)
			}
		}
	}
}

// Whatever others write, the page keeps its shape, and the terminal gets no escape but ours: vt
// knows no other.
func FuzzThePage(f *testing.F) {
	for _, s := range append(pieces, "\x1b]0;title\x07", "\x9b2J", "\ufeff\u200f\u2067", strings.Repeat("日", 300),
		"\x18\x1a") {
		f.Add(s, s, uint8(80), uint8(24))
	}
	f.Fuzz(func(t *testing.T, name, text string, w, h uint8) {
		p := newPage(t, int(w)%140+1, int(h)%40+1)
		st := state(name, "x", 7, text, "web-2")
		st.Leader.ID, st.Leader.Value, st.Leader.Note, st.Leader.Lease = text, []byte(text), text, name
		p.states = []primacy.State{st, state("zz", "web-9", 9)}
		p.terms[name] = []Term{{Token: 7, From: noon}}
		p.reads()
		p.selected = name
		for _, keys := range [][]string{nil, {keyEnter}, {keyEsc, "t"}, {keyEnter, keyEnter}, {keyEsc, "d"},
			{keyEsc, "/", "z"}} {
			p.presses(keys...)
			v := newVT(t, p.w, p.h)
			pt := painter{colours: true}
			g := p.draw()
			v.write(pt.paint(g))
			v.shows(g)
		}
		p.presses(keyEsc)
		if got := p.picture(); p.w >= 60 && p.h >= 8 && !strings.Contains(got, "web-9") {
			t.Fatalf("the other row is not as it was:\n%s", got)
		}
	})
}

func TestKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		keys := make(chan string, 100)
		go readKeys(r, keys)
		for _, s := range []string{"j\x1b[A\x1bOB", "\x1b", "[5~", "\x1b[1;5A\x1b[200~é", "\xe6\x97",
			"\xa5\x03\x7f\x15", "\xff\u200b", "\x1bq"} {
			_, _ = io.WriteString(w, s)
			time.Sleep(10 * time.Millisecond) // the line is slow: a sequence may come in pieces
		}
		_, _ = io.WriteString(w, "\x1b")
		time.Sleep(time.Second)
		_, _ = io.WriteString(w, "\x1b[12")
		time.Sleep(time.Second)
		_, _ = io.WriteString(w, "x")
		w.Close()
		var got []string
		for k := range keys {
			got = append(got, k)
		}
		want := []string{"j", keyUp, keyDown, keyPgUp, "é", "日", keyQuit, keyBack, keyClear, keyEsc, "q", keyEsc, "x"}
		if strings.Join(got, "|") != strings.Join(want, "|") {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	})
}

func FuzzKeys(f *testing.F) {
	f.Add([]byte("\x1b[A\x1b\x1b[1;2;3;4;5;6;7;8;9;10;11;12;13;14;15;16~q"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p := newPage(t, 60, 20)
		p.states = []primacy.State{state("n", "web-1", 1, "web-2")}
		p.reads()
		for len(b) > 0 {
			key, rest, ok := split(b, false)
			if !ok || len(rest) >= len(b) {
				t.Fatalf("%q is stuck", b)
			}
			if b = rest; key != "" {
				p.presses(key)
			}
		}
		p.picture()
	})
}
