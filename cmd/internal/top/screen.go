package top

import (
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

// box clears part of the grid, for what lies over it.
func (g *grid) box(x, y, w, h int) {
	for j := max(y, 0); j < min(y+h, g.h); j++ {
		for i := max(x, 0); i < min(x+w, g.w); i++ {
			g.cells[j*g.w+i] = blank
		}
		if x > 0 && x < g.w && g.cells[j*g.w+x-1].text != "" && j*g.w+x < len(g.cells) { // half of a wide letter left of it
			if gs := glyphs(g.cells[j*g.w+x-1].text, g.ascii); len(gs) == 1 && gs[0].width == 2 {
				g.cells[j*g.w+x-1] = blank
			}
		}
		if end := x + w; end > 0 && end < g.w && g.cells[j*g.w+end].text == "" { // and right of it
			g.cells[j*g.w+end] = blank
		}
	}
}

// painter turns a picture into what a terminal must be told, given what it shows.
type painter struct {
	colours bool
	shown   *grid  // nil: not known
	begin   string // is said before the next picture
	style   style  // of what is written next
	x, y    int    // where the terminal writes next; x < 0: not sure
	doubt   int    // while it is not sure: the cell of this row that may have been overwritten
	out     strings.Builder
}

// forget has the next picture drawn as a whole: the terminal was used by others meanwhile, or has
// another size.
func (p *painter) forget() { p.shown = nil }

// paint returns what makes the terminal show g: only cells that have changed, and little more.
func (p *painter) paint(g *grid) string {
	p.out.Reset()
	p.out.WriteString(p.begin)
	p.begin, p.x = "", -1
	if p.shown == nil || p.shown.w != g.w || p.shown.h != g.h {
		p.out.WriteString("\x1b[0m\x1b[H\x1b[2J")
		p.style, p.shown = plain, newGrid(g.w, g.h, g.ascii)
	}
	for y := range g.h {
		p.row(y, p.shown.cells[y*g.w:(y+1)*g.w], g.cells[y*g.w:(y+1)*g.w])
	}
	p.shown = g
	return p.out.String()
}

// row brings one row from old to now.
func (p *painter) row(y int, old, now []cell) {
	p.doubt = -1
	end := len(now) // behind it the row is blank
	for end > 0 && now[end-1] == blank {
		end--
	}
	for x := 0; x < end; x++ {
		if now[x].text == "" || now[x] == old[x] && p.doubt != x {
			continue // the second cell of a wide letter comes with the first
		}
		p.move(x, y, now)
		p.write(now[x], x+1 < len(now) && now[x+1].text == "")
	}
	for x := end; x < len(old); x++ {
		if old[x] != blank {
			p.move(end, y, now)
			p.setStyle(plain)
			p.out.WriteString("\x1b[K")
			return
		}
	}
}

// move brings the cursor to a cell. A short way in the same row is written again: that is shorter
// than an order.
func (p *painter) move(x, y int, now []cell) {
	if p.x == x && p.y == y {
		return
	}
	if p.y == y && p.x >= 0 && x > p.x && x-p.x <= 3 {
		same := true
		for _, c := range now[p.x:x] {
			same = same && c.style == p.style && len(c.text) == 1
		}
		if same {
			for _, c := range now[p.x:x] {
				p.out.WriteString(c.text)
			}
			p.x = x
			return
		}
	}
	switch {
	case x == 0 && y == 0:
		p.out.WriteString("\x1b[H")
	case x == 0:
		p.out.WriteString("\x1b[" + strconv.Itoa(y+1) + "H")
	default:
		p.out.WriteString("\x1b[" + strconv.Itoa(y+1) + ";" + strconv.Itoa(x+1) + "H")
	}
	p.x, p.y = x, y
}

// write writes one cell, or a wide letter's two. Behind a letter that is not ASCII nobody is sure
// where the terminal is, and whether the next cell was overwritten: other terminals have another
// table of widths.
func (p *painter) write(c cell, wide bool) {
	p.setStyle(c.style)
	x := p.x
	if wide {
		p.out.WriteString("  ")
		p.x = -1
		p.move(x, p.y, nil)
	}
	p.out.WriteString(c.text)
	if p.x++; len(c.text) != 1 && !sure(c.text) {
		p.x, p.doubt = -1, x+1
		if wide {
			p.doubt++
		}
	}
}

// sure says whether a letter takes one cell in every terminal that can show it: what we draw
// ourselves.
func sure(s string) bool {
	r, n := utf8.DecodeRuneInString(s)
	return n == len(s) && strings.ContainsRune("█░─│●○▲◆▼…", r)
}

func (p *painter) setStyle(st style) {
	if !p.colours {
		st &^= colour
	}
	if st == p.style {
		return
	}
	p.out.WriteString("\x1b[0")
	for _, a := range [...]struct {
		bit  style
		code string
	}{{bold, ";1"}, {dim, ";2"}, {invert, ";7"}} {
		if st&a.bit != 0 {
			p.out.WriteString(a.code)
		}
	}
	if c := st & colour; c != 0 {
		p.out.WriteString(";3" + strconv.Itoa(int(c)))
	}
	p.out.WriteString("m")
	p.style = st
}
