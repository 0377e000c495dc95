package metrics

import (
	"context"
	"time"

	"github.com/primacy-go/primacy"
)

const (
	gapAfter = 2 * time.Second // from a win to the look at its history: the record of its beginning is written meanwhile
	gapLimit = 5 * time.Second // of one look
	maxWins  = 1000            // that wait for one; the gaps of more are not known
	gapTerms = 8               // read: others may have followed
)

// win is a term whose gap is to be looked up.
type win struct {
	reign
	s   *primacy.Session
	due time.Time
}

// won leaves a win for watchGaps. The lock is held.
func (t *tally) won(s *primacy.Session, r reign) {
	select {
	case t.wins <- win{r, s, time.Now().Add(gapAfter)}:
	default:
	}
}

// watchGaps reads for how long nobody led before each term that was won, one after the other. Only the history knows when the term before ended.
func (t *tally) watchGaps(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var w win
		select {
		case w = <-t.wins:
		case <-ctx.Done():
			return
		}
		timer.Reset(time.Until(w.due))
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		if gap, known := w.gap(ctx); known {
			t.mu.Lock()
			t.of(w.name).gap.observe(&waitBounds, gap)
			t.mu.Unlock()
		}
	}
}

// gap returns for how long nobody led before the term, if the history tells.
func (w win) gap(ctx context.Context) (time.Duration, bool) {
	ctx, cancel := context.WithTimeout(ctx, gapLimit)
	defer cancel()
	reigns, err := w.s.Election(w.name).History(ctx, gapTerms)
	if err != nil {
		return 0, false // no store, or one without a history
	}
	for _, r := range reigns {
		if r.Token == w.token && r.Gap != nil {
			return *r.Gap, true
		}
	}
	return 0, false
}
