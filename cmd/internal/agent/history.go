package agent

import (
	"errors"
	"net/http"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/health"
	"github.com/primacy-go/primacy/cmd/internal/shown"
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
