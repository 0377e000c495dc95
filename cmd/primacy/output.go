package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/shown"
)

// stateJSON is a line in JSON, with what else is known of it.
type stateJSON struct {
	shown.State
	Since time.Time    `json:"since,omitzero"` // the present leader's term, by its wall clock
	Terms []shown.Term `json:"terms,omitempty"`
	Error string       `json:"error,omitempty"`

	Paused    *shown.Pause   `json:"paused,omitempty"`    // by an operator; of several pauses the strongest
	Unhealthy []healthRecord `json:"unhealthy,omitempty"` // who has said so last, within a day
	HeldBack  []heldBack     `json:"held_back,omitempty"` // who waits for the end of a pause, and does not stand

	LostPlaces []lostPlace `json:"lost_places,omitempty"` // who was named to lead next in a pause, and is not elected
}

// lostPlace is a candidate that somebody has named, and that has lost its place since.
type lostPlace struct {
	ID    string        `json:"id"`
	Token primacy.Token `json:"token"`
	By    string        `json:"by"`
}

// heldBack is a candidate that waits for the end of a pause.
type heldBack struct {
	ID    string    `json:"id"`
	Since time.Time `json:"since"`
}

func stateToJSON(st primacy.State, err error) stateJSON {
	j := stateJSON{State: shown.StateOf(st)}
	if err != nil {
		j.Error = oneLine(err)
	}
	return j
}

// holders returns who leads, or holds the lock, and who else holds it beside him, in the order of
// the line.
func holders(st primacy.State) []primacy.Entry {
	if st.Leader == nil {
		return nil
	}
	out := []primacy.Entry{*st.Leader}
	for _, w := range st.Waiting {
		if w.Held {
			out = append(out, w)
		}
	}
	return out
}

// waiting returns how many stand in the line and hold nothing.
func waiting(st primacy.State) (n int) {
	for _, w := range st.Waiting {
		if !w.Held {
			n++
		}
	}
	return n
}

// share says beside whom a claim may hold; "" is an exclusive one, as every candidate's is.
func share(slots int) string {
	switch {
	case slots < 0:
		return "shared"
	case slots > 0:
		return fmt.Sprintf("slot of %d", slots)
	}
	return ""
}

// whoAll names who leads or holds, in one cell.
func whoAll(st primacy.State) string {
	if n := len(holders(st)); n > 1 {
		return fmt.Sprintf("%s and %d more", who(st.Leader), n-1)
	}
	return who(st.Leader)
}

// writeJSON writes v: indented for -o json, one line for -o ndjson.
func (a *app) writeJSON(v any) error {
	enc := json.NewEncoder(a.stdout)
	enc.SetEscapeHTML(false)
	if a.output == "json" {
		enc.SetIndent("", "  ")
	}
	return enc.Encode(v)
}

// writeRows writes rows as one array, or with -o ndjson each on a line of its own.
func writeRows[T any](a *app, rows []T) error {
	if a.output == "json" {
		return a.writeJSON(rows)
	}
	for _, r := range rows {
		if err := a.writeJSON(r); err != nil {
			return err
		}
	}
	return nil
}

// who names a candidate for people: its ID, or what else is known of a claim that another program
// entered.
func who(s *primacy.Entry) string {
	switch {
	case s == nil:
		return "(nobody)"
	case s.ID != "":
		return named(s.ID)
	case len(s.Value) > 0:
		return clean(string(s.Value)) + " (another program)"
	}
	return "another program, lease " + orDash(s.Lease)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return clean(s)
}

// clean makes somebody else's text safe for a terminal: no control characters, not too long.
func clean(s string) string { return shown.Clean(s) }

// named shows a name or an ID: all of it.
func named(s string) string { return shown.Name(s) }

func printable(s string) string { return shown.Printable(s) }

// table prints rows in columns.
func table(w io.Writer, rows ...[]string) error {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	for _, r := range rows {
		fmt.Fprintln(tw, strings.Join(r, "\t"))
	}
	return tw.Flush()
}

// heard passes on what is written, and remembers why something did not get through.
type heard struct {
	to   io.Writer
	lost error
}

func (h *heard) Write(b []byte) (n int, err error) {
	if n, err = h.to.Write(b); err != nil {
		h.lost = err
	}
	return n, err
}
