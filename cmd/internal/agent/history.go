package agent

import (
	"errors"
	"net/http"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/health"
	"github.com/primacy-go/primacy/cmd/internal/shown"
)

// reign is a past term, or the present one, in JSON.
type reign struct {
	Token  primacy.Token  `json:"token"`
	ID     string         `json:"id"`
	Value  string         `json:"value,omitempty"`
	From   time.Time      `json:"from,omitzero"`
	To     time.Time      `json:"to,omitzero"`
	Reason primacy.Reason `json:"reason"`
	By     string         `json:"by,omitempty"`
	Text   string         `json:"text,omitempty"`
	Heir   string         `json:"heir,omitempty"`
	GapMS  *int64         `json:"gap_ms,omitempty"`
}

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
	terms := []reign{}
	for _, p := range past {
		t := reign{Token: p.Token, ID: p.ID, Value: shown.Text(string(p.Value)), From: p.From.UTC(), To: p.To.UTC(), Reason: p.Reason, By: p.By, Text: shown.Text(p.Text), Heir: p.Heir}
		if p.Gap != nil {
			ms := p.Gap.Milliseconds()
			t.GapMS = &ms
		}
		terms = append(terms, t)
	}
	health.WriteJSON(w, http.StatusOK, map[string]any{"name": name, "terms": terms})
}
