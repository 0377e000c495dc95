package shown

import (
	"strconv"
	"time"

	"github.com/primacy-go/primacy"
)

// Term is one term of an election's history, as 'primacy history', 'primacy status' and the sidecar
// write it.
type Term struct {
	Name      string         `json:"name"`
	Token     primacy.Token  `json:"token"`
	ID        string         `json:"id"`                      // empty: not known
	Value     string         `json:"value"`                   // what the leader announced
	From      time.Time      `json:"from,omitzero"`           // in UTC, as To; absent: not known
	To        time.Time      `json:"to,omitzero"`             // absent: it leads, or nobody recorded the end
	Lasted    string         `json:"lasted_ms,omitempty"`     // absent: not known
	Gap       string         `json:"gap_before_ms,omitempty"` // in which nobody led before it; absent: not known
	Reason    primacy.Reason `json:"reason"`
	By        string         `json:"by,omitempty"`        // who asked for the end
	Text      string         `json:"text,omitempty"`      // why, in words
	Successor string         `json:"successor,omitempty"` // the ID to which it was handed over
	Leads     bool           `json:"leads"`

	// See primacy.TermRecord. What is absent is not known, or was not so.
	ToAfter  time.Time `json:"to_after,omitzero"`           // bounds where nobody recorded the end
	ToBefore time.Time `json:"to_before,omitzero"`          //
	GapMost  string    `json:"gap_before_max_ms,omitempty"` // the gap before it was no longer
	Overlap  string    `json:"overlap_ms,omitempty"`        // so long the term before it went on, by both clocks
	Paused   string    `json:"paused_ms,omitempty"`         // its process did not run, at least so long
	DownFrom time.Time `json:"store_down_from,omitzero"`    // when the store did not answer
	DownTo   time.Time `json:"store_down_to,omitzero"`      //
	Outlived string    `json:"outlived_right_ms,omitempty"` // its work was alive so long after its right had ended
}

// TermOf returns r as it is shown.
func TermOf(r primacy.TermRecord) Term {
	j := Term{
		Name: r.Name, Token: r.Token, ID: r.ID, Value: Text(string(r.Value)),
		Reason: r.Reason, By: Text(r.By), Text: Text(r.Text),
		Successor: Text(r.Successor), Leads: r.Reason == primacy.Leads,
	}
	if !r.From.IsZero() {
		j.From = r.From.UTC()
	}
	if !r.To.IsZero() {
		j.To = r.To.UTC()
	}
	if d, known := r.Lasted(); known {
		j.Lasted = strconv.FormatInt(d.Milliseconds(), 10)
	}
	if r.Gap != nil {
		j.Gap = strconv.FormatInt(r.Gap.Milliseconds(), 10)
	}
	if r.GapMost != nil {
		j.GapMost = strconv.FormatInt(r.GapMost.Milliseconds(), 10)
	}
	j.Overlap, j.Paused, j.Outlived = ms(r.Overlap), ms(r.Paused), ms(r.Outlived)
	j.ToAfter, j.ToBefore, j.DownFrom, j.DownTo = utc(r.ToAfter), utc(r.ToBefore), utc(r.DownFrom), utc(r.DownTo)
	return j
}

// ms returns a duration that is known in milliseconds.
func ms(d time.Duration) string {
	if d <= 0 {
		return ""
	}
	return strconv.FormatInt(d.Milliseconds(), 10)
}

func utc(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.UTC()
}

// TermsOf returns all as they are shown; never nil, which would be null in JSON.
func TermsOf(all []primacy.TermRecord) []Term {
	out := make([]Term, 0, len(all))
	for _, r := range all {
		out = append(out, TermOf(r))
	}
	return out
}
