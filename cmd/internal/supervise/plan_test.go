package supervise

import (
	"testing"
	"time"
)

func TestPlan(t *testing.T) {
	const s = time.Second
	start := plan{deadline: 100 * s, grace: 5 * s, margin: s}
	for _, test := range []struct {
		name         string
		do           func(p *plan)
		next, killAt time.Duration
	}{
		{"untouched", func(p *plan) {}, 95 * s, 99 * s},
		{"extended", func(p *plan) { p.extend(110 * s) }, 105 * s, 109 * s},
		{"never back", func(p *plan) { p.extend(110 * s); p.extend(50 * s) }, 105 * s, 109 * s},
		{"stopped early", func(p *plan) { p.endBy(15 * s) }, 15 * s, 15 * s},
		{"grace beyond the deadline", func(p *plan) { p.endBy(102 * s) }, 99 * s, 99 * s},
		{"a second stop shortens", func(p *plan) { p.endBy(40 * s); p.endBy(13 * s) }, 13 * s, 13 * s},
		{"but does not lengthen", func(p *plan) { p.endBy(15 * s); p.endBy(71 * s) }, 15 * s, 15 * s},
		{"a later deadline does not revive", func(p *plan) { p.endBy(100 * s); p.extend(200 * s) },
			100 * s, 100 * s},
		{"grace within the margin", func(p *plan) { p.grace = 0 }, 99 * s, 99 * s},
		{"bound to an earlier deadline", func(p *plan) { p.rebind(50 * s) }, 45 * s, 49 * s},
		{"unbound", func(p *plan) { p.rebind(NoDeadline) }, NoDeadline - 5*s, NoDeadline - s},
		{"unbound stays so", func(p *plan) { p.rebind(NoDeadline); p.extend(200 * s) },
			NoDeadline - 5*s, NoDeadline - s},
		{"bound after that", func(p *plan) { p.rebind(NoDeadline); p.rebind(50 * s) }, 45 * s, 49 * s},
		{"stopped, then bound", func(p *plan) { p.endBy(15 * s); p.rebind(NoDeadline) }, 15 * s, 15 * s},
		{"stopped while unbound", func(p *plan) { p.rebind(NoDeadline); p.endBy(15 * s) }, 15 * s, 15 * s},
	} {
		p := start
		test.do(&p)
		if p.next() != test.next || p.killAt() != test.killAt {
			t.Errorf("%s: got next %v, kill %v, want %v, %v", test.name, p.next(), p.killAt(), test.next, test.killAt)
		}
	}
}
