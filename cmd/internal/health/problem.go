package health

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// Kind is one kind of problem as RFC 9457 has it: a type that never changes, a title and the status
// it comes with.
type Kind struct {
	Slug   string
	Status int
	Title  string
}

// URN is what stands before each kind's slug in the type of a problem.
const URN = "urn:primacy:"

// The problems that any path can answer.
var (
	NotFound  = Kind{"not-found", http.StatusNotFound, "there is nothing here"}
	BadMethod = Kind{"method-not-allowed", http.StatusMethodNotAllowed, "this path does not serve that method"}
	Invalid   = Kind{"invalid", http.StatusBadRequest, "the request cannot work"}
)

// Problem is the body of an answer that is an error.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
}

// Problem returns the problem with what is the matter here, on one line.
func (k Kind) Problem(format string, args ...any) Problem {
	control := func(r rune) bool { return r < ' ' || r == 0x7f }
	detail := strings.Join(strings.FieldsFunc(fmt.Sprintf(format, args...), control), " ")
	detail = strings.TrimPrefix(strings.ToValidUTF8(detail, "\uFFFD"), "primacy: ")
	return Problem{URN + k.Slug, k.Title, k.Status, detail}
}

// Write answers with the problem.
func (k Kind) Write(w http.ResponseWriter, format string, args ...any) {
	p := k.Problem(format, args...)
	h := w.Header()
	h.Del("ETag")
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(k.Status)
	_ = json.NewEncoder(w).Encode(p)
}

// WriteJSON answers with v.
func WriteJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	if w.Header().Get("Cache-Control") == "" {
		w.Header().Set("Cache-Control", "no-store")
	}
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v)
}
