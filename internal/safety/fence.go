package safety

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// Outcome is what a resource behind a fence said to a write.
type Outcome string

const (
	Applied Outcome = "ok"      // the write is in the resource
	Stale   Outcome = "stale"   // refused: a larger token had been seen
	Unknown Outcome = "unknown" // no answer: it may be applied, now or later, or never
)

// Stamp names a write: the term it was made in, the writer, and the writer's own count.
type Stamp struct {
	Token uint64
	Who   string
	Seq   uint64
}

// String returns the stamp as an error shows it.
func (s Stamp) String() string {
	return fmt.Sprintf("write %d of %s under token %d", s.Seq, s.Who, s.Token)
}

// Write is one call on a fenced resource, as its caller saw it. Both times are on one clock; Return
// is when the answer came or the caller gave up.
type Write struct {
	Stamp
	Call, Return time.Duration
	Outcome      Outcome
}

// CheckFence returns nil if log, what a fenced resource has applied in its order, could follow from
// writes, what its callers were told: tokens never go back in the log, no write is in it twice,
// each acknowledged write is in it (none was lost), and no refused one is. Writes in the log whose
// callers died before they could tell of them are no fault.
func CheckFence(log []Stamp, writes []Write) error {
	if _, err := LostWrites(log, writes); err != nil {
		return err
	}
	applied := make(map[Stamp]int, len(log))
	for i, s := range log {
		if i > 0 && s.Token < log[i-1].Token {
			return fmt.Errorf("the fence let an older term pass: %v, applied after %v", s, log[i-1])
		}
		if first, twice := applied[s]; twice {
			return fmt.Errorf("applied twice: %v, as number %d and %d", s, first+1, i+1)
		}
		applied[s] = i
	}
	for _, w := range writes {
		if at, in := applied[w.Stamp]; in && w.Outcome == Stale {
			return fmt.Errorf("refused, and applied all the same: %v, number %d of the log", w.Stamp, at+1)
		}
	}
	return nil
}

// LostWrites returns how many writes were acknowledged and are not in the log, with an error that
// names the first.
func LostWrites(log []Stamp, writes []Write) (int, error) {
	applied := make(map[Stamp]bool, len(log))
	for _, s := range log {
		applied[s] = true
	}
	lost := 0
	var first error
	for _, w := range writes {
		if w.Outcome == Applied && !applied[w.Stamp] {
			if lost++; first == nil {
				first = fmt.Errorf("acknowledged and lost: %v, acknowledged at %d ns", w.Stamp, w.Return)
			}
		}
	}
	return lost, first
}

// ReadWrites reads what one or more writers recorded: lines "call_ns return_ns token id seq
// ok|stale|unknown". Empty lines, those that begin with #, and a last one without its end are
// skipped.
func ReadWrites(records ...io.Reader) ([]Write, error) {
	var writes []Write
	for i, r := range records {
		err := eachLine(r, func(text string) error {
			w, err := parseWrite(text)
			writes = append(writes, w)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("writes, record %d: %w", i+1, err)
		}
	}
	return writes, nil
}

func parseWrite(text string) (w Write, err error) {
	fields := strings.Fields(text)
	if len(fields) != 6 {
		return w, fmt.Errorf("%q is not a write: want call_ns return_ns token id seq ok|stale|unknown", text)
	}
	call, err1 := strconv.ParseInt(fields[0], 10, 64)
	back, err2 := strconv.ParseInt(fields[1], 10, 64)
	token, err3 := strconv.ParseUint(fields[2], 10, 64)
	seq, err4 := strconv.ParseUint(fields[4], 10, 64)
	for _, err := range []error{err1, err2, err3, err4} {
		if err != nil {
			return w, fmt.Errorf("%q: %w", text, err)
		}
	}
	w = Write{Stamp{token, fields[3], seq}, time.Duration(call), time.Duration(back), Outcome(fields[5])}
	if w.Outcome != Applied && w.Outcome != Stale && w.Outcome != Unknown {
		return w, fmt.Errorf("%q: the outcome is none of ok, stale and unknown", text)
	}
	return w, nil
}
