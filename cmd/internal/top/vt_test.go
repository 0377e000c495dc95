package top

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// vt is a terminal: as much of one as the page needs. What it does not know is an error of the
// page: no escape of anybody else's may get here.
type vt struct {
	testing.TB
	w, h    int
	cells   [][]cell
	x, y    int
	style   string // the SGR parameters in force
	styles  [][]string
	widthOf func(string) int // how wide it takes a letter to be
}

func newVT(t testing.TB, w, h int) *vt {
	v := &vt{TB: t, w: w, h: h, widthOf: func(s string) int {
		if gs := glyphs(s, false); len(gs) == 1 {
			return gs[0].width
		}
		return 1
	}}
	v.clear()
	return v
}

func (v *vt) clear() {
	v.cells, v.styles = nil, nil
	for range v.h {
		v.cells = append(v.cells, slices.Repeat([]cell{blank}, v.w))
		v.styles = append(v.styles, make([]string, v.w))
	}
}

func (v *vt) write(s string) {
	v.Helper()
	for s != "" {
		if s[0] == 0x1b {
			s = v.escape(s[1:])
			continue
		}
		r, n := utf8.DecodeRuneInString(s)
		if r == utf8.RuneError || r < ' ' || r >= 0x7f && r < 0xa0 {
			v.Fatalf("a terminal gets %q of %q", s[:n], head(s))
		}
		if combines(r) {
			if v.x > 0 && v.x <= v.w {
				v.cells[v.y][v.x-1].text += string(r)
			}
		} else {
			v.print(string(r))
		}
		s = s[n:]
	}
}

func (v *vt) print(letter string) {
	w := v.widthOf(letter)
	if v.x+w > v.w { // no wrapping: the last cell is overwritten
		v.x = v.w - w
	}
	v.wipe(v.x)
	v.cells[v.y][v.x], v.styles[v.y][v.x] = cell{text: letter}, v.style
	if w == 2 {
		v.wipe(v.x + 1)
		v.cells[v.y][v.x], v.cells[v.y][v.x+1] = cell{text: letter}, cell{}
		v.styles[v.y][v.x+1] = v.style
	}
	v.x += w
}

// wipe blanks the other half of a wide letter that is overwritten.
func (v *vt) wipe(x int) {
	row := v.cells[v.y]
	if row[x].text == "" && x > 0 {
		row[x-1] = blank
	}
	if x+1 < v.w && row[x+1].text == "" {
		row[x+1] = blank
	}
	row[x] = blank
}

func (v *vt) escape(s string) (rest string) {
	v.Helper()
	i := strings.IndexFunc(s, func(r rune) bool { return r != '[' && r != '?' && r != ';' && (r < '0' || r > '9') })
	if i < 1 || s[0] != '[' {
		v.Fatalf("an unknown escape: %q", head(s))
	}
	args, final := s[1:i], s[i]
	n := []int{}
	for a := range strings.SplitSeq(args, ";") {
		k, _ := strconv.Atoi(a)
		n = append(n, k)
	}
	switch final {
	case 'H':
		v.y, v.x = max(n[0], 1)-1, 0
		if len(n) > 1 {
			v.x = max(n[1], 1) - 1
		}
		if v.y >= v.h || v.x >= v.w {
			v.Fatalf("the cursor is sent to %d;%d of %d×%d", v.y, v.x, v.w, v.h)
		}
	case 'K':
		for x := v.x; x < v.w; x++ {
			v.wipe(x)
			v.styles[v.y][x] = v.style
		}
	case 'J':
		v.clear()
	case 'm':
		v.style = strings.TrimPrefix(strings.TrimPrefix(args, "0"), ";")
	case 'h', 'l':
	default:
		v.Fatalf("an unknown escape: ESC [%s%c", args, final)
	}
	return s[i+1:]
}

func head(s string) string { return s[:min(len(s), 40)] }

// text is what one sees.
func (v *vt) text() string {
	var b strings.Builder
	for _, row := range v.cells {
		line := ""
		for _, c := range row {
			line += c.text
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return b.String()
}

// shows compares the terminal with the picture it should show.
func (v *vt) shows(g *grid) {
	v.Helper()
	for y := range g.h {
		for x := range g.w {
			if want := g.cells[y*g.w+x].text; v.cells[y][x].text != want {
				v.Fatalf("at row %d, column %d there is %q, want %q\nof:\n%s", y, x, v.cells[y][x].text, want, v.text())
			}
		}
	}
}

func (v *vt) styleAt(x, y int) string { return v.styles[y][x] }
