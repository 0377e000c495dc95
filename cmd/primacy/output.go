package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/primacy-go/primacy"
)

// standingJSON is a candidate in JSON. 64-bit numbers are strings: many readers round them.
type standingJSON struct {
	ID    string        `json:"id"`
	Token primacy.Token `json:"token"`
	Value string        `json:"value"`
	Lease string        `json:"lease,omitempty"`
	Note  string        `json:"note,omitempty"`
}

type stateJSON struct {
	Name     string         `json:"name"`
	Leader   *standingJSON  `json:"leader"`
	Waiting  []standingJSON `json:"waiting"`
	Revision string         `json:"revision"`
	AsOf     time.Time      `json:"as_of"`
	Error    string         `json:"error,omitempty"`
}

func stateToJSON(st primacy.State, err error) stateJSON {
	j := stateJSON{Name: st.Name, Waiting: []standingJSON{}, Revision: strconv.FormatUint(st.Revision, 10), AsOf: st.AsOf.UTC()}
	if st.Leader != nil {
		l := standingToJSON(*st.Leader)
		j.Leader = &l
	}
	for _, w := range st.Waiting {
		j.Waiting = append(j.Waiting, standingToJSON(w))
	}
	if err != nil {
		j.Error = oneLine(err)
	}
	return j
}

func standingToJSON(s primacy.Standing) standingJSON {
	return standingJSON{ID: s.ID, Token: s.Token, Value: strings.ToValidUTF8(string(s.Value), "\uFFFD"), Lease: s.Lease, Note: s.Note}
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

// who names a candidate for people: its ID, or what else is known of a claim that another program entered.
func who(s *primacy.Standing) string {
	switch {
	case s == nil:
		return "(nobody)"
	case s.ID != "":
		return clean(s.ID)
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
func clean(s string) string {
	const limit = 60
	if len(s) > 8*limit { // a value may have megabytes
		s = s[:8*limit]
	}
	if r := []rune(printable(s)); len(r) > limit {
		return string(r[:limit-1]) + "…"
	}
	return printable(s)
}

func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '·'
		}
		return r
	}, s)
}

// table prints rows in columns.
func table(w io.Writer, rows ...[]string) error {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	for _, r := range rows {
		fmt.Fprintln(tw, strings.Join(r, "\t"))
	}
	return tw.Flush()
}
