package core

import (
	"fmt"
	"strconv"
	"strings"
)

// LSN is a position in the write-ahead log (WAL) of PostgreSQL, in bytes from its beginning. 0 is
// no position.
type LSN uint64

// String returns the LSN as PostgreSQL writes it, such as 0/3000148.
func (l LSN) String() string { return fmt.Sprintf("%X/%X", uint64(l)>>32, uint32(l)) }

// ParseLSN reads what [LSN.String] writes.
func ParseLSN(text string) (LSN, error) {
	high, low, ok := strings.Cut(text, "/")
	h, errHigh := strconv.ParseUint(high, 16, 32)
	l, errLow := strconv.ParseUint(low, 16, 32)
	if !ok || errHigh != nil || errLow != nil {
		return 0, fmt.Errorf("%q is no LSN: want two hexadecimal numbers, such as 0/3000148", text)
	}
	return LSN(h<<32 | l), nil
}

// MarshalText writes an LSN in JSON as PostgreSQL writes it.
func (l LSN) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText reads what [LSN.MarshalText] writes.
func (l *LSN) UnmarshalText(text []byte) (err error) {
	*l, err = ParseLSN(string(text))
	return err
}

// Timeline is the number of a timeline: each promotion begins a new one.
type Timeline uint32

// Position is where the WAL of a server ends.
type Position struct {
	Timeline Timeline `json:"timeline"` // of the last record
	LSN      LSN      `json:"lsn"`      // after the last record
}

// Heard returns what counts of where a primary's WAL ended, as somebody has heard it: nothing of a
// timeline after the record's, which is of another life of the cluster. Who has heard of the latest
// timeline knows most. A member that was down for long may have heard last of a former primary that
// had more: that was given up once somebody has heard a later one lead. A record alone says of no
// such one, for it is written before its primary is promoted.
func (r *Record) Heard(p Position) Position {
	switch {
	case p.LSN == 0 || p.Timeline > r.Timeline:
		return Position{}
	case p.Timeline == 0: // noted by a version that noted none
		p.Timeline = r.Timeline
	}
	return p
}

// Before says whether p is less advanced than q. The timeline comes first, as the term does in
// Raft: a longer log of an older timeline may lack what was acknowledged on the newer one.
func (p Position) Before(q Position) bool {
	if p.Timeline != q.Timeline {
		return p.Timeline < q.Timeline
	}
	return p.LSN < q.LSN
}

func (p Position) String() string { return fmt.Sprintf("%v on timeline %d", p.LSN, p.Timeline) }
