//go:build linux

package interop

import (
	"context"
	"errors"

	"github.com/primacy-go/primacy"
)

// inSession is a stander that takes its turns on a session of ours.
func inSession(s *primacy.Session, id string,
	take func(ctx context.Context, s *primacy.Session, id string) (*primacy.Term, error),
	number func(*primacy.Term) uint64) func(w *world) stander {
	return func(w *world) stander {
		return func(tn *turn) error {
			term, err := take(tn.ctx, s, id)
			if errors.Is(err, primacy.ErrHeld) {
				return errTaken
			}
			if err != nil {
				return tn.gaveUp(err)
			}
			if err := w.holds(tn, number(term), func() bool { return term.Check() == nil }); err != nil {
				return err
			}
			return term.Resign(context.Background())
		}
	}
}

// The tokens of locks count local hand-overs in their last sixteen bits; those of elections are
// brought to the same scale.
func ofLock(t *primacy.Term) uint64     { return uint64(t.Token()) }
func ofElection(t *primacy.Term) uint64 { return scale(uint64(t.Token())) }

func lock(ctx context.Context, s *primacy.Session, _ string) (*primacy.Term, error) {
	return s.Mutex(lineName, nil).Lock(ctx)
}

func tryLock(ctx context.Context, s *primacy.Session, _ string) (*primacy.Term, error) {
	return s.Mutex(lineName, nil).TryLock(ctx)
}

func read(ctx context.Context, s *primacy.Session, _ string) (*primacy.Term, error) {
	return s.RWMutex(lineName).RLock(ctx)
}

func tryRead(ctx context.Context, s *primacy.Session, _ string) (*primacy.Term, error) {
	return s.RWMutex(lineName).TryRLock(ctx)
}

func campaign(ctx context.Context, s *primacy.Session, id string) (*primacy.Term, error) {
	return s.Election(lineName).Campaign(ctx, &primacy.CampaignOptions{Value: []byte("of " + id)})
}

var (
	ourElection = kind{name: "Election", join: func(w *world, id string) stander {
		return inSession(w.newSession(id), id, campaign, ofElection)(w)
	}}
	ourMutex = kind{name: "Mutex", join: func(w *world, id string) stander {
		return inSession(w.newSession(id), id, lock, ofLock)(w)
	}}
	ourTry = kind{name: "Mutex.TryLock", try: true, join: func(w *world, id string) stander {
		return inSession(w.newSession(id), id, tryLock, ofLock)(w)
	}}
	ourReader = kind{name: "reader-RLock", reads: true, join: func(w *world, id string) stander {
		return inSession(w.newSession(id), id, read, ofLock)(w)
	}}
	ourTryRead = kind{name: "reader-TryRLock", reads: true, try: true, join: func(w *world, id string) stander {
		return inSession(w.newSession(id), id, tryRead, ofLock)(w)
	}}
	// ourTogether stand behind one claim: one session has them all.
	ourTogether = kind{name: "Mutex-of-one-process", join: func(w *world, id string) stander {
		return inSession(w.sharedSession(), id, lock, ofLock)(w)
	}}
)

// sharedSession returns a session that is the same for all who ask.
func (w *world) sharedSession() *primacy.Session {
	w.Helper()
	w.mu.Lock()
	s := w.shared
	w.mu.Unlock()
	if s == nil { // participants join one after another
		s = w.newSession("shared")
		w.mu.Lock()
		w.shared = s
		w.mu.Unlock()
	}
	return s
}
