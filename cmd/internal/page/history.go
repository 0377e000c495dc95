package page

import (
	"context"
	"sync"
	"time"

	"github.com/primacy-go/primacy"
)

// records keep what was read of the histories that are on a screen.
type records struct {
	session *primacy.Session
	timeout time.Duration
	mu      sync.Mutex
	all     map[string]*record
}

type record struct {
	mu    sync.Mutex
	terms []primacy.TermRecord
	err   error
	token primacy.Token // who led when it was read
	at    time.Time
}

const (
	termsRead   = 400             // of one election
	rereads     = 5 * time.Second // signs of life come at most once in six ttls
	recordComes = 300 * time.Millisecond
	mostRecords = 200
)

// of returns the terms of an election, the newest first. Token is of the leader at present, 0 if
// there is none: with another one the terms are read anew.
func (r *records) of(ctx context.Context, name string, token primacy.Token) ([]primacy.TermRecord, error) {
	r.mu.Lock()
	if len(r.all) >= mostRecords && r.all[name] == nil {
		r.all = map[string]*record{}
	}
	h := r.all[name]
	if h == nil {
		h = &record{}
		r.all[name] = h
	}
	r.mu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	if age := time.Since(h.at); !h.at.IsZero() && h.token == token && age < h.lasts() {
		return h.terms, h.err
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	terms, err := r.session.Election(name).History(ctx, termsRead)
	if ctx.Err() != nil && h.token == token && h.terms != nil {
		return h.terms, nil // what was known is still true of the past
	}
	h.terms, h.err, h.token, h.at = terms, err, token, time.Now()
	return terms, err
}

// lasts is for how long what was read is good: the record of a term comes a moment after its
// leader.
func (h *record) lasts() time.Duration {
	if h.err != nil || h.token != 0 && (len(h.terms) == 0 || h.terms[0].Token != h.token || h.terms[0].From.IsZero()) {
		return recordComes
	}
	return rereads
}
