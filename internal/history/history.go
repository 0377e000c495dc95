// Package history finds two leaders in a record of who acted when: what the simulation, the torture tests and `primacy doctor` judge by.
package history

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Interval says that Who acted as leader of Name under Token from From until just before To. All times are on one clock
// of one machine, such as the boot clock.
type Interval struct {
	Name  string
	Token uint64
	Who   string
	From  time.Duration
	To    time.Duration // From or later. An instant is From == To
}

// String returns the interval as an error shows it, in nanoseconds so that it can be found in the record.
func (i Interval) String() string {
	return fmt.Sprintf("%s led %q under token %d in [%d, %d) ns", i.Who, i.Name, i.Token, i.From, i.To)
}

// Check returns nil if the history could be that of elections: for each name, intervals of different tokens do not
// overlap (one may begin when the other ends), tokens grow strictly in order of the beginnings, and each token has one
// owner. The error names the first two intervals that contradict each other. The order of history does not matter, and
// it stays as it is. Time O(n log n).
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

// Read reads what one or more workers wrote while they led name, and returns an interval from the first to the last
// sight of each token by each worker.
//
// A record is a line "boot_ns token id": the boot clock in nanoseconds, the token, and who writes, without blanks. A worker
// writes one before each thing it does as leader, each with one write call. Empty lines and those that begin with # are
// skipped. A last line without its end is skipped too: its worker was killed while it wrote.
func Read(name string, records ...io.Reader) ([]Interval, error) {
	type term struct {
		token uint64
		who   string
	}
	seen := map[term]*Interval{}
	var order []*Interval
	for i, r := range records {
		err := eachLine(r, func(text string) error {
			at, token, who, err := parseRecord(text)
			if err != nil {
				return err
			}
			in := seen[term{token, who}]
			if in == nil {
				in = &Interval{Name: name, Token: token, Who: who, From: at, To: at}
				seen[term{token, who}], order = in, append(order, in)
			}
			in.From, in.To = min(in.From, at), max(in.To, at)
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("history of %q, record %d: %w", name, i+1, err)
		}
	}
	history := make([]Interval, len(order))
	for i, in := range order {
		history[i] = *in
	}
	return history, nil
}

// eachLine calls do with each whole line that is not empty or a comment.
func eachLine(r io.Reader, do func(text string) error) error {
	lines := bufio.NewReader(r)
	for n := 1; ; n++ {
		text, err := lines.ReadString('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if text = strings.TrimSpace(text); text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		if err := do(text); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
	}
}

// parseRecord reads "boot_ns token id".
func parseRecord(text string) (at time.Duration, token uint64, who string, err error) {
	fields := strings.Fields(text)
	if len(fields) != 3 {
		return 0, 0, "", fmt.Errorf("%q is not a record: want boot_ns token id", text)
	}
	ns, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil {
		return 0, 0, "", fmt.Errorf("%q: the time is not in nanoseconds: %w", text, err)
	}
	token, err = strconv.ParseUint(fields[1], 10, 64)
	if err != nil {
		return 0, 0, "", fmt.Errorf("%q: the token is not a number: %w", text, err)
	}
	return time.Duration(ns), token, fields[2], nil
}
