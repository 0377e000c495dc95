package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/handover"
	"github.com/primacy-go/primacy/cmd/internal/health"
	"github.com/primacy-go/primacy/cmd/internal/shown"
)

// etag is the same for two answers that say the same of the lines.
func etag(states ...shown.State) string {
	h := sha256.New()
	for _, s := range states {
		s.AsOf, s.Revision = time.Time{}, "" // a store may count changes elsewhere
		b, _ := json.Marshal(s)
		h.Write(b)
	}
	return `"` + hex.EncodeToString(h.Sum(nil)[:12]) + `"`
}

// answer writes what the store showed, and how old that is.
func answer(w http.ResponseWriter, r *http.Request, asOf time.Time, tag string, v any) {
	h := w.Header()
	h.Set("X-Primacy-As-Of", asOf.UTC().Format(time.RFC3339Nano))
	h.Set("X-Primacy-Age-Ms", strconv.FormatInt(time.Since(asOf).Milliseconds(), 10))
	h.Set("ETag", tag)
	h.Set("Cache-Control", "no-cache")
	for known := range strings.SplitSeq(r.Header.Get("If-None-Match"), ",") {
		if strings.TrimPrefix(strings.TrimSpace(known), "W/") == tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	health.WriteJSON(w, http.StatusOK, v)
}

// list answers GET /v1/elections.
func (a *Agent) list(w http.ResponseWriter, r *http.Request, _ string) {
	ctx, cancel := a.limited(r)
	defer cancel()
	asOf := time.Now()
	states, err := a.own.List(ctx, r.URL.Query().Get("prefix"))
	if err != nil {
		fail(w, err)
		return
	}
	out := []shown.State{}
	for _, st := range states {
		out = append(out, shown.StateOf(st))
	}
	answer(w, r, asOf, etag(out...), map[string]any{"elections": out, "as_of": asOf.UTC()})
}

// state answers GET /v1/elections/{name}.
func (a *Agent) state(w http.ResponseWriter, r *http.Request, name string) {
	ctx, cancel := a.limited(r)
	defer cancel()
	st, err := a.own.Election(name).State(ctx)
	if err != nil {
		fail(w, err)
		return
	}
	j := shown.StateOf(st)
	answer(w, r, st.AsOf, etag(j), j)
}

// tokenJSON is the body of an answer that names a term.
type tokenJSON struct {
	Token primacy.Token `json:"token"`
}

// resign answers POST /v1/elections/{name}/resign: with a token, of the client that holds it;
// without, of somebody who asks the leader to.
func (a *Agent) resign(w http.ResponseWriter, r *http.Request, name string) {
	var b struct {
		Reason string `json:"reason"`
	}
	if !decode(w, r, &b) || !sound(w, name, b.Reason) {
		return
	}
	if r.Header.Get("Primacy-Token") != "" {
		a.release(w, r, false, name, b.Reason)
		return
	}
	ctx, cancel := a.limited(r)
	defer cancel()
	token, err := a.mover(b.Reason).Ask(ctx, a.own.Election(name), "", 0)
	if err != nil {
		fail(w, err)
		return
	}
	health.WriteJSON(w, http.StatusAccepted, tokenJSON{token})
}

// mover asks leaders. A leader is asked to resign also in a pause, or where nobody knows whether
// there is one: then nobody is admitted to follow, and half the time of the request is left.
func (a *Agent) mover(reason string) *handover.Mover {
	return &handover.Mover{Session: a.own, Reason: reason, Attempt: a.o.Timeout / 2, Anyway: true}
}

// transfer answers POST /v1/elections/{name}/transfer.
func (a *Agent) transfer(w http.ResponseWriter, r *http.Request, name string) {
	var b struct {
		To     string `json:"to"`
		Reason string `json:"reason"`
	}
	if !decode(w, r, &b) || !sound(w, name, b.Reason) {
		return
	}
	ctx, cancel := a.limited(r)
	defer cancel()
	token, err := a.mover(b.Reason).Ask(ctx, a.own.Election(name), b.To, 0)
	if err != nil {
		fail(w, err)
		return
	}
	health.WriteJSON(w, http.StatusAccepted, tokenJSON{token})
}

// proclaim answers POST /v1/elections/{name}/proclaim.
func (a *Agent) proclaim(w http.ResponseWriter, r *http.Request, name string) {
	var b struct {
		Value *string `json:"value"`
	}
	if !decode(w, r, &b) || !sound(w, name, "") {
		return
	}
	if b.Value == nil {
		health.Invalid.Write(w, "value is missing: a string, the new value that observers see")
		return
	}
	h, ok := a.holder(w, r, false, name)
	if !ok {
		return
	}
	ctx, cancel := a.limited(r)
	defer cancel()
	if err := h.term.Proclaim(ctx, []byte(*b.Value)); err != nil {
		fail(w, err)
		return
	}
	health.WriteJSON(w, http.StatusOK, tokenJSON{h.term.Token()})
}

// maxReason bounds what is told to a leader.
const maxReason = 1024

// sound answers where a name or a reason cannot be used.
func sound(w http.ResponseWriter, name, reason string) bool {
	err := primacy.CheckName(name)
	if err != nil {
		health.Invalid.Write(w, "%v", err)
	} else if len(reason) > maxReason {
		health.Invalid.Write(w, "the reason has %d bytes, more than %d", len(reason), maxReason)
		return false
	}
	return err == nil
}

// holder returns what is held under the request's token. It answers where nothing is.
func (a *Agent) holder(w http.ResponseWriter, r *http.Request, lock bool, name string) (*holding, bool) {
	token, ok := tokenOf(w, r)
	if !ok {
		return nil, false
	}
	h := a.held.find(lock, name, token)
	if h == nil {
		notHeld.Write(w, "nothing is held here under token %d of %s: it was given back, it ran out, "+
			"or another process held it", token, name)
		return nil, false
	}
	return h, true
}

// release gives back what is held under the request's token, and under nothing else.
func (a *Agent) release(w http.ResponseWriter, r *http.Request, lock bool, name, why string) {
	h, ok := a.holder(w, r, lock, name)
	if !ok {
		return
	}
	h.term.Explain(why, false)
	h.giveUp(shown.Ending{Reason: primacy.Resigned, By: h.id, Text: why})
	if err := h.resign(); err != nil {
		// it goes on until the store has confirmed it
		health.WriteJSON(w, http.StatusAccepted, tokenJSON{h.term.Token()})
		return
	}
	health.WriteJSON(w, http.StatusOK, tokenJSON{h.term.Token()})
}
