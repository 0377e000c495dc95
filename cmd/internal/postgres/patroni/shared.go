package patroni

import (
	"context"
	"errors"
	"net/http"

	"github.com/primacy-go/primacy/cmd/internal/health"
	"github.com/primacy-go/primacy/cmd/internal/postgres/config"
)

// pauseKey is the key of the shared configuration that says whether the cluster is paused.
const pauseKey = "pause"

// configuration are the routes of /config.
func (a *API) configuration() (routes []health.Route) {
	read := func(w http.ResponseWriter, r *http.Request, _ string) {
		ctx, cancel := context.WithTimeout(r.Context(), storeLimit)
		defer cancel()
		d, version, err := a.Shared.Read(ctx)
		switch {
		case err != nil:
			a.unreachable(w, err)
		case version == 0:
			text(w, http.StatusBadGateway, "there is no shared configuration yet")
		default:
			answer(w, r, http.StatusOK, d)
		}
	}
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodOptions} {
		routes = append(routes, health.Route{Method: method, Path: "/config", Handle: read})
	}
	return append(routes, a.write(http.MethodPatch, "/config", a.patch), a.write(http.MethodPut, "/config", a.replace))
}

// patch merges a part of a configuration into that of the cluster. A pause comes first: it is in
// force when the answer says so.
func (a *API) patch(w http.ResponseWriter, r *http.Request, body map[string]any) {
	a.change(w, r, body, func(was config.Document) (config.Document, error) {
		next, _ := was.Merge(body)
		return next, nil
	})
}

func (a *API) replace(w http.ResponseWriter, r *http.Request, body map[string]any) {
	if _, said := body[pauseKey]; !said && len(body) > 0 {
		body[pauseKey] = nil // what is not there is off
	}
	a.change(w, r, body, func(config.Document) (config.Document, error) {
		next := config.Document(body).Clone()
		if next[pauseKey] == nil {
			delete(next, pauseKey)
		}
		return next, nil
	})
}

func (a *API) change(w http.ResponseWriter, r *http.Request, body map[string]any,
	to func(config.Document) (config.Document, error),
) {
	if len(body) == 0 {
		text(w, http.StatusBadRequest, "give a JSON object with what is to be changed")
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), verbLimit)
	defer cancel()
	now, version, err := a.Shared.Read(ctx)
	switch {
	case err != nil:
		a.unreachable(w, err)
		return
	case version == 0: // the first primary writes it
		text(w, http.StatusServiceUnavailable, "there is no shared configuration yet")
		return
	}
	next, err := to(now)
	if err == nil {
		err = next.Validate()
	}
	if err != nil { // before the pause: of what is refused nothing is done
		text(w, http.StatusUnprocessableEntity, oneLine(err))
		return
	}
	if p, said := body[pauseKey]; said {
		do := a.Verbs.Resume
		if p == true || p == "on" || p == "true" {
			do = a.Verbs.Pause
		}
		if err := do(ctx); err != nil {
			a.refuse(w, http.StatusConflict, err)
			return
		}
	}
	_, is, _, err := a.Shared.Change(ctx, to)
	switch {
	case errors.Is(err, config.ErrRefused):
		text(w, http.StatusUnprocessableEntity, oneLine(err))
	case err != nil:
		a.unreachable(w, err)
	default:
		health.WriteJSON(w, http.StatusOK, is)
	}
}
