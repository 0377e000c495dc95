package top

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/width"

	"github.com/primacy-go/primacy/cmd/internal/shown"
)

// What others wrote reaches the screen only through glyphs: names, IDs, values and reasons may hold
// escapes, letters as wide as two cells or as none.

// glyph is what one cell shows, or two where it is wide.
type glyph struct {
	text  string
	width int
}

// marksKept is how many combining marks a letter keeps: somebody may pile up a thousand, which some
// terminals paint over the rows above.
const marksKept = 3

// glyphs makes of others' text what can be shown. What is not printable, or stands for no cell of
// its own, becomes a dot; in ASCII all else does too.
func glyphs(s string, ascii bool) []glyph {
	const limit = 4096 // a value may have megabytes
	if len(s) > limit {
		s = s[:limit]
	}
	dot := "·"
	if ascii {
		dot = "."
	}
	var out []glyph
	marks := 0
	for _, r := range s {
		switch {
		case r < utf8.RuneSelf && r >= ' ' && r != 0x7f:
			out, marks = append(out, glyph{string(r), 1}), 0
		case ascii:
			out = append(out, glyph{dot, 1})
		case combines(r):
			if marks++; len(out) == 0 {
				out = append(out, glyph{dot, 1})
			} else if marks <= marksKept {
				out[len(out)-1].text += string(r)
			}
		case !shows(r):
			out, marks = append(out, glyph{dot, 1}), marksKept // what follows is no mark of the dot
		case isWide(r):
			out, marks = append(out, glyph{string(r), 2}), 0
		default:
			out, marks = append(out, glyph{string(r), 1}), 0
		}
	}
	return out
}

// isWide says whether terminals show a rune in two cells.
func isWide(r rune) bool {
	k := width.LookupRune(r).Kind()
	return k == width.EastAsianWide || k == width.EastAsianFullwidth
}

// combines says whether a rune is put onto the letter before it. Variation selectors are too, and
// change its width in some terminals only.
func combines(r rune) bool {
	return unicode.In(r, unicode.Mn, unicode.Me) && !unicode.Is(unicode.Variation_Selector, r)
}

// shows says whether a rune has a cell of its own in every terminal.
func shows(r rune) bool {
	switch {
	case !shown.Shows(r):
		return false
	case r >= 0x1160 && r <= 0x11ff, r >= 0xd7b0 && r <= 0xd7ff: // the later letters of a Hangul syllable
		return false
	}
	return true
}

// plainText says whether a name can be typed as it is shown.
func plainText(s string) bool {
	var b strings.Builder
	for _, g := range glyphs(s, false) {
		b.WriteString(g.text)
	}
	return b.String() == s && !strings.Contains(s, "·") && strings.TrimSpace(s) == s
}

// widthOf returns how many cells glyphs take.
func widthOf(gs []glyph) (n int) {
	for _, g := range gs {
		n += g.width
	}
	return n
}

// cut shortens glyphs to that many cells, and says so with an ellipsis.
func cut(gs []glyph, most int, ascii bool) []glyph {
	if widthOf(gs) <= most {
		return gs
	}
	more := glyph{"…", 1}
	if ascii {
		more.text = "~"
	}
	if most < 1 {
		return nil
	}
	n := 0
	for i, g := range gs {
		if n+g.width > most-1 {
			return append(gs[:i:i], more)
		}
		n += g.width
	}
	return gs
}
