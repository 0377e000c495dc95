// Package safety judges records of what leaders did: were there ever two leaders at once, did
// tokens go back, did a fence keep what it acknowledged and refuse what was late. The conformance
// suite, the simulation, the torture tests and `primacy doctor` share it.
package safety

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Interval says that Who acted as leader of Name under Token from From until just before To. All
// times are on one clock of one machine, such as the boot clock.
type Interval struct {
	Name  string
	Token uint64
	Who   string
	From  time.Duration
	To    time.Duration // From or later. An instant is From == To
}

// String returns the interval as an error shows it, in nanoseconds so that it can be found in the
// record.
func (i Interval) String() string {
	return fmt.Sprintf("%s led %q under token %d in [%d, %d) ns", i.Who, i.Name, i.Token, i.From, i.To)
}

// Check returns nil if the history could be that of elections: for each name, intervals of
// different tokens do not overlap (one may begin when the other ends), tokens grow strictly in
// order of the beginnings, and each token has one owner. The error names the first two intervals
// that contradict each other. The order of history does not matter, and it stays as it is. Time O(n
// log n).
func Check(history []Interval) error {
	sorted := slices.Clone(history)
	slices.SortFunc(sorted, func(a, b Interval) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.From, b.From), cmp.Compare(a.Token, b.Token))
	})
	type term struct {
		name  string
		token uint64
	}
	owners := map[term]Interval{}
	var last Interval // of this name, the one that ends last; all so far have its token or a smaller one
	for i, now := range sorted {
		if now.To < now.From {
			return fmt.Errorf("ends before it begins: %v", now)
		}
		first, known := owners[term{now.Name, now.Token}]
		if !known {
			owners[term{now.Name, now.Token}] = now
		} else if first.Who != now.Who {
			return fmt.Errorf("one token, two owners: %v, and %v", first, now)
		}
		if i == 0 || now.Name != sorted[i-1].Name {
			last = now
			continue
		}
		if now.Token != last.Token && now.From < last.To {
			return fmt.Errorf("two leaders at once for %v: %v, while %v", min(now.To, last.To)-now.From, now, last)
		}
		if now.Token < last.Token {
			return fmt.Errorf("the token went back: %v, after %v", now, last)
		}
		if now.Token > last.Token || now.To > last.To {
			last = now
		}
	}
	return nil
}

// Act is one thing that Who did as leader under Token, at an instant.
type Act struct {
	At    time.Duration
	Token uint64
	Who   string
}

// Terms returns an interval for each token and owner, from the first act to the last, and the same
// in pieces: an owner that did not act for longer than pause did not act in between. Both are in
// the order of their beginnings.
func Terms(name string, acts []Act, pause time.Duration) (terms, pieces []Interval) {
	type term struct {
		token uint64
		who   string
	}
	whole, last := map[term]int{}, map[term]int{}
	inOrder := slices.Clone(acts)
	slices.SortStableFunc(inOrder, func(a, b Act) int { return cmp.Compare(a.At, b.At) })
	for _, a := range inOrder {
		k := term{a.Token, a.Who}
		begin := Interval{Name: name, Token: a.Token, Who: a.Who, From: a.At, To: a.At}
		i, known := whole[k]
		if !known {
			whole[k], terms = len(terms), append(terms, begin)
		} else {
			terms[i].To = a.At
		}
		if p := last[k]; known && a.At-pieces[p].To <= pause {
			pieces[p].To = a.At
		} else {
			last[k], pieces = len(pieces), append(pieces, begin)
		}
	}
	return terms, pieces
}

// Overlap is a pair of terms that led one name at the same time.
type Overlap struct {
	Older, Younger Interval      // by token
	For            time.Duration // how long both led; 0 for an instant
}

// String returns the pair as an error shows it.
func (o Overlap) String() string {
	return fmt.Sprintf("two leaders for %v: %v, and %v", o.For, o.Older, o.Younger)
}

// Overlaps returns every pair of terms (one owner and one token) of a name that led at the same
// time, the longest first. A term may be given as several intervals, between which it did not act;
// their common time is summed up. Where [Check] wants to know whether the promise was kept,
// Overlaps tells how badly it was broken.
func Overlaps(history []Interval) []Overlap {
	sorted := slices.Clone(history)
	slices.SortFunc(sorted, func(a, b Interval) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.From, b.From))
	})
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
		return cmp.Or(cmp.Compare(b.For, a.For),
			cmp.Compare(a.Older.Token, b.Older.Token), cmp.Compare(a.Younger.Token, b.Younger.Token))
	})
	return all
}
