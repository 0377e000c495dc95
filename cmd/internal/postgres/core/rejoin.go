package core

// Rejoin is how a stopped or sealed server comes to follow a primary.
type Rejoin int

const (
	RejoinFollow Rejoin = iota // its WAL is a part of the primary's
	RejoinRewind               // it has WAL that the primary has not: pg_rewind, after that WAL was saved
	RejoinClone                // nothing of it can be kept: pg_basebackup
)

// RejoinFor decides by where the member's WAL ends and where each timeline of the primary began.
func RejoinFor(own Position, r Record) Rejoin {
	if own.Timeline == r.Timeline {
		return RejoinFollow // only Primary has ever written on that timeline
	}
	// own's timeline ended for the primary where the next one of its lineage began.
	for i, f := range r.Lineage {
		if f.Timeline == own.Timeline && i+1 < len(r.Lineage) {
			if own.LSN <= r.Lineage[i+1].From {
				return RejoinFollow
			}
			return RejoinRewind
		}
	}
	return RejoinRewind // on a timeline that is not the primary's: promoted by hand, or too long ago
}
