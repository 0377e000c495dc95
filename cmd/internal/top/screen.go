package top

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// style is how a cell looks. The colours are a choice of the terminal's first eight: what they look
// like is up to its owner.
type style uint8

const (
	plain  style = 0
	red    style = 1
	green  style = 2
	yellow style = 3
	blue   style = 4
	colour style = 7 // the bits of the colour
	bold   style = 8
	dim    style = 16
	invert style = 32
)

// cell is one place of the screen. The second cell of a wide letter has an empty text.
type cell struct {
	text  string
	style style
}

var blank = cell{text: " "}

// grid is a picture: rows of cells. What is drawn outside of it is lost, and does no harm.
type grid struct {
	w, h  int
	cells []cell
	ascii bool
}

func newGrid(w, h int, ascii bool) *grid {
	g := &grid{w: max(w, 0), h: max(h, 0), ascii: ascii}
	g.cells = make([]cell, g.w*g.h)
	for i := range g.cells {
		g.cells[i] = blank
	}
	return g
}

// put writes text from x in row y, in at most width cells, and returns where it ends.
func (g *grid) put(x, y, width int, text string, st style) int {
	for _, gl := range cut(glyphs(text, g.ascii), min(width, g.w-x), g.ascii) {
		if y < 0 || y >= g.h || x < 0 || x+gl.width > g.w {
			return x
		}
		g.cells[y*g.w+x] = cell{gl.text, st}
		if gl.width == 2 {
			g.cells[y*g.w+x+1] = cell{"", st}
		}
		x += gl.width
	}
	return x
}

// puts writes words one after the other, each in its style.
func (g *grid) puts(x, y int, parts ...part) int {
	for _, p := range parts {
		x = g.put(x, y, g.w-x, p.text, p.style)
	}
	return x
}

type part struct {
	text  string
	style style
}

// paint gives a whole row a style beside that which its cells have.
func (g *grid) paint(y int, st style) {
	for x := 0; x < g.w && y >= 0 && y < g.h; x++ {
		g.cells[y*g.w+x].style |= st
	}
}

// painter turns a picture into what a terminal must be told, given what it shows. Rows that have
// changed are written again as a whole.
type painter struct {
	colours bool
	shown   *grid  // nil: not known
	begin   string // is written before the next picture
}

// forget has the next picture drawn as a whole: the terminal was used by others meanwhile, or has
// another size.
func (p *painter) forget() { p.shown = nil }

// paint returns what makes the terminal show g.
func (p *painter) paint(g *grid) string {
	var out strings.Builder
	out.WriteString(p.begin)
	p.begin = ""
	if p.shown == nil || p.shown.w != g.w || p.shown.h != g.h {
		out.WriteString("\x1b[0m\x1b[H\x1b[2J")
		p.shown = newGrid(g.w, g.h, g.ascii)
	}
	for y := range g.h {
		if now := g.row(y); !slices.Equal(now, p.shown.row(y)) {
			p.write(&out, y, now)
		}
	}
	p.shown = g
	return out.String()
}

func (g *grid) row(y int) []cell { return g.cells[y*g.w : (y+1)*g.w] }

// write writes one row. Terminals have different tables of widths, so behind a letter that is not
// ASCII the cursor is told where to go.
func (p *painter) write(out *strings.Builder, y int, row []cell) {
	fmt.Fprintf(out, "\x1b[%dH\x1b[K", y+1)
	for len(row) > 0 && row[len(row)-1] == blank {
		row = row[:len(row)-1]
	}
	st, lost := plain, false // lost: nobody is sure where the cursor is
	for x, c := range row {
		if c.text == "" { // the second cell of a wide letter
			continue
		}
		if lost {
			fmt.Fprintf(out, "\x1b[%d;%dH", y+1, x+1)
		}
		if c.style != st {
			st = c.style
			out.WriteString(p.order(st))
		}
		out.WriteString(c.text)
		lost = len(c.text) != 1 && !sure(c.text)
	}
	if st != plain {
		out.WriteString(p.order(plain))
	}
}

// sure says whether a letter takes one cell in every terminal that can show it: what we draw
// ourselves.
func sure(s string) bool {
	r, n := utf8.DecodeRuneInString(s)
	return n == len(s) && strings.ContainsRune("█░─│●○▲◆▼…", r)
}

// order is what a terminal is told for a style.
func (p *painter) order(st style) string {
	s := "\x1b[0"
	for _, a := range [...]struct {
		bit  style
		code string
	}{{bold, ";1"}, {dim, ";2"}, {invert, ";7"}} {
		if st&a.bit != 0 {
			s += a.code
		}
	}
	if c := st & colour; c != 0 && p.colours {
		s += ";3" + strconv.Itoa(int(c))
	}
	return s + "m"
}
