package top

// column is where a figure stands on the screen.
type column struct {
	what, title string
	x, width    int
}

// columnSpec says how wide a figure is, and which ones a narrow screen does without first.
type columnSpec struct {
	what, title string
	width       int
	drop        int // the larger, the earlier it goes; 0: never
}

// columns places what fits. Name and leader share what is left; where they would be too short,
// another column goes.
func (u *ui) columns(w int) []column {
	specs := []columnSpec{
		{"dot", "", 1, 0}, {"health", "HEALTH", 12, 4}, {"name", "NAME", 0, 0}, {"leader", "LEADER", 0, 0},
		{"since", "SINCE", 6, 3},
		{"token", "TOKEN", u.tokenWidth(), 6}, {"waiting", "WAIT", 4, 2}, {"changes", "CHG", 4, 5},
		{"lease", "LEASE", 9, 7},
	}
	if u.view != nil && u.stale() {
		specs[1].width = 16 // "was nobody leads"
	}
	for least := 24; ; {
		fixed, worst := 1, -1
		for i, s := range specs {
			if fixed += s.width + 1; s.drop > 0 && (worst < 0 || s.drop > specs[worst].drop) {
				worst = i
			}
		}
		if rest := w - fixed; rest >= least || worst < 0 {
			return place(specs, max(rest, 2), u.nameWidth(max(rest, 2)))
		}
		specs = append(specs[:worst:worst], specs[worst+1:]...)
	}
}

// place gives each column its place; rest is for name and leader, which gets that many cells.
func place(specs []columnSpec, rest, name int) (cols []column) {
	x := 1
	for _, s := range specs {
		switch s.what {
		case "name":
			s.width = name
		case "leader":
			s.width = max(rest-name, 1)
		}
		cols = append(cols, column{s.what, s.title, x, s.width})
		x += s.width + 1
	}
	return cols
}

func (u *ui) tokenWidth() int {
	n := 5
	for _, r := range u.rows {
		if l := r.state.Leader; l != nil {
			n = max(n, len(l.Token.String()))
		}
	}
	return n
}

// nameWidth shares room between names and leaders: the larger part for names, but no more than they
// need, and what leaders do not need.
func (u *ui) nameWidth(room int) int {
	name, leader := 12, 8
	for _, r := range u.rows {
		name = max(name, widthOf(glyphs(r.name, u.ascii)))
		leader = max(leader, widthOf(glyphs(r.leader(), u.ascii))+2*min(r.holders()-1, 1))
	}
	return max(min(name, max(room*11/20, room-leader)), 1)
}
