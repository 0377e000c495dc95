package agent

import (
	"errors"
	"net/http"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/cron"
	"github.com/primacy-go/primacy/cmd/internal/health"
	"github.com/primacy-go/primacy/driver"
)

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
