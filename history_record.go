package primacy

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// historyPrefix is what the journals of elections begin with.
const historyPrefix = "terms/"

// A term has one record under its token, from a moment after it was won; the release replaces it by one with the end. What could not travel with a release is
// kept beside it, under the token with endSuffix, since a journal takes nothing back.
const endSuffix = "+end"

// Limits of what a record keeps: it travels with a release, beside hundreds of others.
const (
	recordText  = 512 // bytes of what people said
	recordValue = 512 // bytes of a value; a larger one is left out
)

// record is a term as it is kept. A reader ignores fields that he does not know, and a field is never given another meaning.
type record struct {
	Version int       `json:"v"`
	ID      string    `json:"id,omitempty"`
	Value   []byte    `json:"value,omitempty"`
	From    time.Time `json:"from,omitzero"`
	To      time.Time `json:"to,omitzero"`
	Reason  Reason    `json:"why,omitempty"` // empty while it leads
	By      string    `json:"by,omitempty"`
	Text    string    `json:"text,omitempty"`
	Heir    string    `json:"heir,omitempty"`
}

func recordKey(t Token) string { return fmt.Sprintf("%020d", uint64(t)) }

// encode makes the record that is kept under the key.
func (r record) encode(key string) driver.Record {
	r.Version = 1
	r.Text, r.By, r.Heir = cut(r.Text), cut(r.By), cut(r.Heir)
	if len(r.Value) > recordValue {
		r.Value = nil
	}
	r.From, r.To = r.From.UTC().Truncate(time.Millisecond), r.To.UTC().Truncate(time.Millisecond)
	b, err := json.Marshal(r)
	if err != nil { // a year beyond 9999
		r.From, r.To = time.Time{}, time.Time{}
		b, _ = json.Marshal(r)
	}
	return driver.Record{Key: key, Value: b}
}

// cut shortens what people said.
func cut(s string) string {
	if len(s) <= recordText {
		return s
	}
	return strings.ToValidUTF8(s[:recordText-len("…")], "") + "…"
}

// readRecord reads a record; anybody who may write to the store may have written it.
func readRecord(d driver.Record) (t Token, r record, end, ok bool) {
	key, end := strings.CutSuffix(d.Key, endSuffix)
	n, err := strconv.ParseUint(key, 10, 64)
	if err != nil || n == 0 || key != recordKey(Token(n)) || len(d.Value) > driver.MaxRecord {
		return 0, r, false, false
	}
	if json.Unmarshal(d.Value, &r) != nil || r.Version < 1 {
		return 0, r, false, false
	}
	if r.Reason == Leads || r.Reason == Unknown {
		r.Reason = "" // no record says that: the line does
	}
	if end && r.Reason == "" {
		return 0, r, false, false
	}
	r.From, r.To = tellable(r.From), tellable(r.To)
	return Token(n), r, end, true
}

// tellable returns t in UTC, zero if it has a year that no reader could be told.
func tellable(t time.Time) time.Time {
	if t = t.UTC(); t.Year() < 1 || t.Year() > 9999 {
		return time.Time{}
	}
	return t
}

// RecordDeath returns the record by which the history of an election says that the process which led under that token died, and the name of the
// journal for it. It is for who has seen that process and all its work die, as the guardian of a command has: he appends it before he revokes the lease, with a keep that
// removes nothing (math.MaxInt32). What the leader itself has said counts first. At is by his wall clock.
func RecordDeath(name string, t Token, id string, at time.Time, text string) (journal string, r driver.Record) {
	return historyPrefix + name, record{ID: id, To: at, Reason: Died, Text: text}.encode(recordKey(t) + endSuffix)
}
