package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/cron"
	"github.com/primacy-go/primacy/cmd/internal/health"
	"github.com/primacy-go/primacy/cmd/internal/shown"
	"github.com/primacy-go/primacy/driver"
)

// history answers GET /v1/elections/{name}/history.
func (a *Agent) history(w http.ResponseWriter, r *http.Request, name string) {
	limit, ok := limitOf(w, r)
	if !ok || !sound(w, name, "") {
		return
	}
	ctx, cancel := a.limited(r)
	defer cancel()
	past, err := a.own.Election(name).History(ctx, limit)
	if errors.Is(err, primacy.ErrInvalid) { // the name is sound: it is the store
		notOffered.Write(w, "%v", err)
		return
	}
	if err != nil {
		fail(w, err)
		return
	}
	health.WriteJSON(w, http.StatusOK, map[string]any{"name": name, "terms": shown.TermsOf(past)})
}

// fenceJournals is what the names of the journals begin with in which the largest token seen is
// kept.
const fenceJournals = "fence/"

// fence answers POST /v1/fence/{name}: for a resource that cannot keep the largest token itself. It
// is kept in the store, so all servers on it agree and none forgets it by a restart; it may be
// forgotten 400 days after it was first seen (see [driver.Journal]).
//
// The answer is 200 if at some instant during the request no larger token had been seen, and from
// then on a smaller one is 412. What it cannot do is to hold back a larger token between the answer
// and the write: the resource asks while it holds whatever makes its writes exclusive.
func (a *Agent) fence(w http.ResponseWriter, r *http.Request, name string) {
	var b struct {
		Token string `json:"token"`
	}
	if !decode(w, r, &b) || !sound(w, name, "") {
		return
	}
	var token primacy.Token
	if err := token.UnmarshalText([]byte(b.Token)); err != nil || token == 0 {
		health.Invalid.Write(w, "token is %q: a string with a whole number above 0", b.Token)
		return
	}
	journal, ok := a.store.(driver.Journal)
	if caps := a.store.Caps(); !ok || !caps.Linearizable {
		notOffered.Write(w, "%s keeps no journal that is read as it is now: let the resource compare tokens itself",
			caps.Store)
		return
	}
	ctx, cancel := a.limited(r)
	defer cancel()
	largest, err := pass(ctx, journal, name, token)
	switch {
	case errors.Is(err, driver.ErrRefused):
		refused.Write(w, "%v", err)
		return
	case err != nil: // it may have been noted: asked again, the answer is the same
		unreachable.Write(w, "%v", err)
		return
	}
	if largest > token {
		w.Header().Set("Primacy-Largest", largest.String())
		stale.Write(w, "the token %d is older than %d, which %s has seen", token, largest, name)
		return
	}
	health.WriteJSON(w, http.StatusOK, tokenJSON{largest})
}

// pass notes the token and returns the largest that has been seen. What is noted has been read
// back: an answer that was lost does no harm.
func pass(ctx context.Context, j driver.Journal, name string, token primacy.Token) (primacy.Token, error) {
	journal := fenceJournals + name
	largest, err := largestSeen(ctx, j, journal)
	if err != nil || largest >= token {
		return largest, err
	}
	if _, _, err := j.Append(ctx, journal, driver.Record{Key: fmt.Sprintf("%020d", token)}, 2); err != nil {
		if largest, again := largestSeen(ctx, j, journal); again == nil && largest >= token {
			return largest, nil
		}
		return 0, err
	}
	return largestSeen(ctx, j, journal)
}

func largestSeen(ctx context.Context, j driver.Journal, journal string) (primacy.Token, error) {
	newest, err := j.Records(ctx, journal, "", 1)
	if err != nil || len(newest) == 0 {
		return 0, err
	}
	var t primacy.Token
	err = t.UnmarshalText([]byte(newest[0].Key))
	return t, err
}

// cronJobs answers GET /v1/cron.
func (a *Agent) cronJobs(w http.ResponseWriter, r *http.Request, _ string) {
	ctx, cancel := a.limited(r)
	defer cancel()
	jobs, err := cron.ReadAll(ctx, a.store, time.Now())
	if err != nil {
		failRead(w, err)
		return
	}
	health.WriteJSON(w, http.StatusOK, map[string]any{"jobs": jobs})
}

// cronJob answers GET /v1/cron/{name}.
func (a *Agent) cronJob(w http.ResponseWriter, r *http.Request, name string) {
	limit, ok := limitOf(w, r)
	if !ok || !sound(w, name, "") {
		return
	}
	ctx, cancel := a.limited(r)
	defer cancel()
	job, runs, err := cron.ReadJob(ctx, a.store, name, 2*limit, time.Now()) // two records each run
	if err != nil {
		failRead(w, err)
		return
	}
	if runs = runs[:min(limit, len(runs))]; runs == nil {
		runs = []cron.RunInfo{}
	}
	health.WriteJSON(w, http.StatusOK, map[string]any{"job": job, "runs": runs})
}

// failRead answers with what is wrong with reading records.
func failRead(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, cron.ErrNoJob):
		noJob.Write(w, "%v", err)
	case errors.Is(err, cron.ErrNoJournal):
		notOffered.Write(w, "%v", err)
	case errors.Is(err, driver.ErrRefused), errors.Is(err, primacy.ErrInvalid):
		fail(w, err)
	default: // an answer of the store that is not final
		unreachable.Write(w, "%v", err)
	}
}
