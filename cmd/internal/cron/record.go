package cron

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// Prefix is how the names of cron's journals begin, and of its claims; the job's name follows.
const Prefix = "cron/"

// Verdicts: what a record says of an attempt.
const (
	Began    = "run"      // decided, by the one whose record it is: nobody else begins this attempt
	Overlap  = "overlap"  // decided: not run, since the one before still ran
	Missed   = "missed"   // decided: not run, since nobody began it in time
	OK       = "ok"       // ended with exit code 0
	Failed   = "failed"   // ended with another code, or could not be started
	TimedOut = "timeout"  // stopped after the job's timeout
	Stopped  = "stopped"  // its runner was told to stop
	Replaced = "replaced" // stopped for its successor
	// its runner died, froze or lost the store; the command was ended before this was written, as
	// far as its guardian reached
	Lost    = "lost"
	Fresh   = "new"    // the schedule counts from here
	Paused  = "paused" // by an operator: the job, or as kindHeld one instant
	Resumed = "resumed"
	Wanted  = "wanted" // an operator asks for a run of this instant
)

const stamp = "20060102T150405Z"

// Kinds of records, in the order of their keys within an attempt. Begin and end are each the only
// one of their key: whoever appends first has decided.
const (
	kindNote  = "n" // of attempt 0: Fresh, Paused, Resumed
	kindWant  = "r" // of attempt 0: Wanted
	kindGap   = "m" // of attempt 0: Missed, many at once, up to Record.Upto
	kindHeld  = "p" // of attempt 0: Paused. The instant is decided when the pause is over
	kindBegin = "a"
	kindEnd   = "z"
	kindLate  = "zz" // what a runner has to say after it was declared lost
)

// Key says what a record is about.
type Key struct {
	At      time.Time // the instant, UTC, whole seconds
	Attempt int       // 1, or more for a retry; 0: not about a run
	Kind    string
}

// String returns the key as it stands in the journal: keys of one job sort by instant, attempt and
// kind.
func (k Key) String() string {
	return fmt.Sprintf("%s.%02d.%s", k.At.UTC().Format(stamp), k.Attempt, k.Kind)
}

// ParseKey reads a key.
func ParseKey(s string) (Key, error) {
	parts := strings.Split(s, ".")
	if len(parts) != 3 || len(parts[1]) != 2 {
		return Key{}, fmt.Errorf("the record key %q is not INSTANT.ATTEMPT.KIND", s)
	}
	at, err := time.Parse(stamp, parts[0])
	n, nerr := strconv.Atoi(parts[1])
	if err != nil || nerr != nil || n < 0 {
		return Key{}, fmt.Errorf("the record key %q is not INSTANT.ATTEMPT.KIND", s)
	}
	return Key{at, n, parts[2]}, nil
}

// Record is one entry of a job's journal.
type Record struct {
	Key Key `json:"-"`

	Verdict string    `json:"v"`
	Run     string    `json:"run,omitempty"` // random: whose record it is, when the answer to an append was lost
	By      string    `json:"by"`            // the session's ID of who wrote it
	Host    string    `json:"host,omitempty"`
	When    time.Time `json:"when"` // on the writer's clock

	// Of a beginning.
	Token   string `json:"token,omitempty"`
	Claim   string `json:"claim,omitempty"` // while it stands the run is not lost
	Def     string `json:"def,omitempty"`   // hash of the whole definition
	Sched   string `json:"sched,omitempty"` // hash of the schedule
	Spec    string `json:"spec,omitempty"`
	Zone    string `json:"zone,omitempty"`
	CatchUp bool   `json:"catch_up,omitempty"` // it was missed, and is made up for
	// how often it is tried again: by the definition under which it began, not by a later one
	Retries int `json:"retries,omitempty"`

	// every instant up to here is decided, has ended and is not tried again: who begins later need
	// not look further back
	Done time.Time `json:"done,omitzero"`

	// Of an end.
	Code *int   `json:"code,omitempty"`
	Took string `json:"took,omitempty"`
	Text string `json:"text,omitempty"`

	// Of many instants that were missed.
	Upto  time.Time `json:"upto,omitzero"`
	Count int       `json:"count,omitempty"`
}

func (r Record) driver() (driver.Record, error) {
	const limit = 1024
	if len(r.Text) > limit {
		r.Text = strings.ToValidUTF8(r.Text[:limit], "")
	}
	value, err := json.Marshal(r)
	return driver.Record{Key: r.Key.String(), Value: value}, err
}

// ParseRecord reads what a journal has; what is not ours, or from a newer version, is left out.
func ParseRecord(d driver.Record) (r Record, ok bool) {
	k, err := ParseKey(d.Key)
	if err != nil || json.Unmarshal(d.Value, &r) != nil {
		return r, false
	}
	r.Key = k
	return r, true
}
