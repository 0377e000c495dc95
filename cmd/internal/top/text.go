package top

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// What others wrote reaches the screen only through glyphs: names, IDs, values and reasons may hold
// escapes, letters as wide as two cells or as none.

// glyph is what one cell shows, or two where it is wide.
type glyph struct {
	text  string
	width int
}

// wide holds the letters that terminals show in two cells.
var wide = &unicode.RangeTable{
	R16: []unicode.Range16{
		{0x1100, 0x115f, 1}, {0x231a, 0x231b, 1}, {0x2329, 0x232a, 1}, {0x23e9, 0x23ec, 1}, {0x23f0, 0x23f3, 3}, {0x25fd, 0x25fe, 1},
		{0x2614, 0x2615, 1}, {0x2648, 0x2653, 1}, {0x267f, 0x2693, 20}, {0x26a1, 0x26a1, 1}, {0x26aa, 0x26ab, 1}, {0x26bd, 0x26be, 1},
		{0x26c4, 0x26c5, 1}, {0x26ce, 0x26d4, 6}, {0x26ea, 0x26ea, 1}, {0x26f2, 0x26f3, 1}, {0x26f5, 0x26fa, 5}, {0x26fd, 0x26fd, 1},
		{0x2705, 0x2705, 1}, {0x270a, 0x270b, 1}, {0x2728, 0x2728, 1}, {0x274c, 0x274e, 2}, {0x2753, 0x2755, 1}, {0x2757, 0x2757, 1},
		{0x2795, 0x2797, 1}, {0x27b0, 0x27bf, 15}, {0x2b1b, 0x2b1c, 1}, {0x2b50, 0x2b55, 5}, {0x2e80, 0x303e, 1}, {0x3041, 0x3247, 1},
		{0x3250, 0x4dbf, 1}, {0x4e00, 0xa4c6, 1}, {0xa960, 0xa97c, 1}, {0xac00, 0xd7a3, 1}, {0xf900, 0xfaff, 1}, {0xfe10, 0xfe19, 1},
		{0xfe30, 0xfe6b, 1}, {0xff01, 0xff60, 1}, {0xffe0, 0xffe6, 1},
	},
	R32: []unicode.Range32{
		{0x16fe0, 0x18aff, 1}, {0x1aff0, 0x1b2fb, 1}, {0x1f004, 0x1f004, 1}, {0x1f0cf, 0x1f0cf, 1}, {0x1f18e, 0x1f18e, 1}, {0x1f191, 0x1f19a, 1},
		{0x1f1e6, 0x1f320, 1}, {0x1f32d, 0x1f335, 1}, {0x1f337, 0x1f37c, 1}, {0x1f37e, 0x1f393, 1}, {0x1f3a0, 0x1f3ca, 1}, {0x1f3cf, 0x1f3d3, 1},
		{0x1f3e0, 0x1f3f0, 1}, {0x1f3f4, 0x1f3f4, 1}, {0x1f3f8, 0x1f43e, 1}, {0x1f440, 0x1f440, 1}, {0x1f442, 0x1f4fc, 1}, {0x1f4ff, 0x1f53d, 1},
		{0x1f54b, 0x1f54e, 1}, {0x1f550, 0x1f567, 1}, {0x1f57a, 0x1f57a, 1}, {0x1f595, 0x1f596, 1}, {0x1f5a4, 0x1f5a4, 1}, {0x1f5fb, 0x1f64f, 1},
		{0x1f680, 0x1f6c5, 1}, {0x1f6cc, 0x1f6d2, 1}, {0x1f6d5, 0x1f6d7, 1}, {0x1f6dc, 0x1f6df, 1}, {0x1f6eb, 0x1f6ec, 1}, {0x1f6f4, 0x1f6fc, 1},
		{0x1f7e0, 0x1f7f0, 1}, {0x1f90c, 0x1f9ff, 1}, {0x1fa70, 0x1faff, 1}, {0x20000, 0x3fffd, 1},
	},
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
		case unicode.Is(wide, r):
			out, marks = append(out, glyph{string(r), 2}), 0
		default:
			out, marks = append(out, glyph{string(r), 1}), 0
		}
	}
	return out
}

// combines says whether a rune is put onto the letter before it. Variation selectors are too, and
// change its width in some terminals only.
func combines(r rune) bool {
	return unicode.In(r, unicode.Mn, unicode.Me) && !unicode.Is(unicode.Variation_Selector, r)
}

// shows says whether a rune has a cell of its own in every terminal.
func shows(r rune) bool {
	switch {
	case r == utf8.RuneError, !unicode.IsPrint(r), unicode.Is(unicode.Variation_Selector, r), unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r):
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
func cut(gs []glyph, width int, ascii bool) []glyph {
	if widthOf(gs) <= width {
		return gs
	}
	more := glyph{"…", 1}
	if ascii {
		more.text = "~"
	}
	if width < 1 {
		return nil
	}
	n := 0
	for i, g := range gs {
		if n+g.width > width-1 {
			return append(gs[:i:i], more)
		}
		n += g.width
	}
	return gs
}
