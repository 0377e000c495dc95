package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Overlap is a pair of terms that led one name at the same time.
type Overlap struct {
	Older, Younger Interval      // by token
	For            time.Duration // how long both led; 0 for an instant
}

// String returns the pair as an error shows it.
func (o Overlap) String() string {
	return fmt.Sprintf("two leaders for %v: %v, and %v", o.For, o.Older, o.Younger)
}

// Overlaps returns every pair of terms (one owner and one token) of a name that led at the same time, the longest first. A term may
// be given as several intervals, between which it did not act; their common time is summed up. Where [Check] wants to know
// whether the promise was kept, Overlaps tells how badly it was broken.
func Overlaps(history []Interval) []Overlap {
	sorted := slices.Clone(history)
	slices.SortFunc(sorted, func(a, b Interval) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.From, b.From)) })
	type key struct {
		name           string
		older, younger uint64
		whoO, whoY     string
	}
	found := map[key]*Overlap{}
	var open []Interval // those that may reach into what follows
	for _, now := range sorted {
		open = slices.DeleteFunc(open, func(o Interval) bool { return o.Name != now.Name || o.To < now.From })
		for _, o := range open {
			if o.Token == now.Token && o.Who == now.Who || o.To == now.From && o.From != o.To && now.From != now.To {
				continue // the same term, or one begins when the other ends
			}
			a, b := o, now
			if a.Token > b.Token {
				a, b = b, a
			}
			k := key{a.Name, a.Token, b.Token, a.Who, b.Who}
			if found[k] == nil {
				found[k] = &Overlap{Older: a, Younger: b}
			}
			found[k].For += min(a.To, b.To) - max(a.From, b.From)
		}
		open = append(open, now)
	}
	var all []Overlap
	for _, o := range found {
		all = append(all, *o)
	}
	slices.SortFunc(all, func(a, b Overlap) int {
		return cmp.Or(cmp.Compare(b.For, a.For), cmp.Compare(a.Older.Token, b.Older.Token), cmp.Compare(a.Younger.Token, b.Younger.Token))
	})
	return all
}
