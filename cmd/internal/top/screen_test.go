package top

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// pieces are what random pictures are made of: wide, combining and odd letters among plain ones.
var pieces = []string{"a", "bc", "日本", "é", "e\u0301", " ", "  ", "🙂", "x\u0301\u0302\u0303\u0304\u0305", "█░",
	"\x1b[2J", "\u202e", "ש", "한", "…", "#"}

func randomGrid(r *rand.Rand, w, h int, ascii bool) *grid {
	g := newGrid(w, h, ascii)
	for y := range h + 1 {
		for x := r.IntN(4); r.IntN(4) > 0; x += r.IntN(9) {
			text := ""
			for range r.IntN(6) {
				text += pieces[r.IntN(len(pieces))]
			}
			x = max(x, g.put(x, y, w, text, []style{plain, red, bold, invert | green, dim}[r.IntN(5)]))
		}
	}
	return g
}

// However pictures follow each other, the terminal shows the last one.
func TestTheTerminalShowsThePicture(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		w, h := 1+r.IntN(40), 1+r.IntN(8)
		v := newVT(t, w, h)
		p := painter{colours: seed%2 == 0}
		for i := range 12 {
			if i == 7 {
				p.forget()
			}
			g := randomGrid(r, w, h, seed%5 == 0)
			v.write(p.paint(g))
			v.shows(g)
			if again := p.paint(g); again != "" {
				t.Fatalf("seed %d: the same picture again takes %q", seed, again)
			}
		}
	}
}

// A terminal may take any letter that is not ASCII to be of another width: what is beside it stays
// where it belongs.
func TestAnotherTableOfWidthsMovesNothing(t *testing.T) {
	for _, width := range []int{1, 2} {
		for seed := range uint64(200) {
			r := rand.New(rand.NewPCG(seed, 2))
			v := newVT(t, 40, 4)
			v.widthOf = func(s string) int {
				if len(s) == 1 || sure(s) {
					return 1
				}
				return width
			}
			p := painter{}
			for range 6 {
				g := newGrid(40, 4, false)
				for y := range 4 {
					for x := 0; x < 40; x += 10 {
						g.put(x, y, 8, pieces[r.IntN(len(pieces))]+pieces[r.IntN(len(pieces))], plain)
						g.put(x+9, y, 1, string(rune('A'+r.IntN(26))), plain)
					}
				}
				v.write(p.paint(g))
				for y := range 4 {
					for x := 9; x < 40; x += 10 {
						if got, want := v.cells[y][x].text, g.cells[y*40+x].text; got != want {
							t.Fatalf("seed %d, width %d: at %d;%d %q, want %q", seed, width, y, x, got, want)
						}
					}
				}
			}
		}
	}
}

func TestStyles(t *testing.T) {
	g := newGrid(6, 1, false)
	g.puts(0, 0, part{"a", red | bold}, part{"b", plain}, part{"c", green | invert}, part{"d", dim})
	for _, colours := range []bool{true, false} {
		v := newVT(t, 6, 1)
		p := painter{colours: colours}
		out := p.paint(g)
		v.write(out)
		want := []string{"1;31", "", "7;32", "2"}
		if !colours {
			want = []string{"1", "", "7", "2"}
			if strings.Contains(out, ";3") {
				t.Errorf("colours: %q", out)
			}
		}
		for x, w := range want {
			if got := v.styleAt(x, 0); got != w {
				t.Errorf("colours %v, cell %d: %q, want %q", colours, x, got, w)
			}
		}
	}
}

// Only rows that have changed are written.
func TestAChangeIsSmall(t *testing.T) {
	p := painter{}
	draw := func(clock string) string {
		g := newGrid(80, 24, false)
		for y := range 24 {
			g.put(0, y, 80, strings.Repeat("text ", 15), plain)
		}
		g.put(60, 3, 20, clock, plain)
		return p.paint(g)
	}
	draw("12:00:09")
	if out := draw("12:00:10"); !strings.HasPrefix(out, "\x1b[4H\x1b[K") || len(out) > 90 {
		t.Errorf("a clock's tick takes %q", out)
	}
}
