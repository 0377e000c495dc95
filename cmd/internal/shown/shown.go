// Package shown is elections in JSON, the same from a verb's -o json and from the sidecar. 64-bit
// numbers are strings: many readers round them.
package shown

import (
	"strconv"
	"strings"
	"time"

	"github.com/primacy-go/primacy"
)

// Entry is a candidate.
type Entry struct {
	ID    string        `json:"id"`
	Token primacy.Token `json:"token"`
	Held  bool          `json:"held"`            // it leads, or holds the lock, alone or beside others
	Slots string        `json:"slots,omitempty"` // of a shared claim: a semaphore's number, or "unlimited" of a reader
	Value string        `json:"value"`
	Lease string        `json:"lease,omitempty"`
	Note  string        `json:"note,omitempty"`
}

// State is a line as it was read.
type State struct {
	Name     string    `json:"name"`
	Leader   *Entry    `json:"leader"`
	Waiting  []Entry   `json:"waiting"`
	Revision string    `json:"revision"`
	AsOf     time.Time `json:"as_of"`
}

// StateOf returns st as it is shown.
func StateOf(st primacy.State) State {
	j := State{Name: st.Name, Waiting: []Entry{}, Revision: strconv.FormatUint(st.Revision, 10), AsOf: st.AsOf.UTC()}
	if st.Leader != nil {
		l := EntryOf(*st.Leader)
		l.Held = true
		j.Leader = &l
	}
	for _, w := range st.Waiting {
		j.Waiting = append(j.Waiting, EntryOf(w))
	}
	return j
}

// EntryOf returns s as it is shown.
func EntryOf(s primacy.Entry) Entry {
	j := Entry{ID: s.ID, Token: s.Token, Held: s.Held, Value: Text(string(s.Value)), Lease: s.Lease, Note: s.Note}
	switch {
	case s.Slots < 0:
		j.Slots = "unlimited"
	case s.Slots > 0:
		j.Slots = strconv.Itoa(s.Slots)
	}
	return j
}

// Text returns s with what is not UTF-8 replaced: JSON has no other text.
func Text(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
