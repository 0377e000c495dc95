package shown

import (
	"fmt"
	"strings"
	"time"

	"github.com/primacy-go/primacy/pause"
)

// Pause is what an operator has paused.
type Pause struct {
	Scope       string     `json:"scope"` // a name, a prefix that ends in a slash, or "" for everything
	By          string     `json:"by"`
	Reason      string     `json:"reason"`
	Since       time.Time  `json:"since"`
	Until       *time.Time `json:"until"` // null: until it is resumed
	NoElections bool       `json:"no_elections"`
}

// Concerns says whether a pause says something about names with that prefix.
func Concerns(p pause.Pause, prefix string) bool {
	return p.Covers(prefix) || strings.HasPrefix(p.Scope, prefix)
}

// Forever is the length of a pause without an end.
const Forever = "forever"

// PauseUntil returns when a pause ends by itself that begins now and has that length, as people
// write it: a duration, or [Forever].
func PauseUntil(length string, now time.Time) (time.Time, error) {
	if length == Forever {
		return time.Time{}, nil
	}
	d, err := time.ParseDuration(length)
	if err != nil || d <= 0 {
		return time.Time{}, fmt.Errorf("%q: give a duration, such as 30m, or %s", Clean(length), Forever)
	}
	return now.Add(d), nil
}

// PauseOf returns p as it is shown; nil for nil.
func PauseOf(p *pause.Pause) *Pause {
	if p == nil {
		return nil
	}
	j := Pause{Scope: p.Scope, By: Text(p.By), Reason: Text(p.Reason), Since: p.Since, NoElections: p.NoElections}
	if !p.Until.IsZero() {
		j.Until = &p.Until
	}
	return &j
}
