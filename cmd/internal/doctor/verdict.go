package doctor

import (
	"fmt"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// TortureTTL is the ttl of the torture's leases where none is given: a crash costs little time, so
// a minute holds many terms.
const TortureTTL = 3 * time.Second

// Torture says what to torture. All fields but the functions and one of URL and Embedded are
// required.
type Torture struct {
	Store      driver.Store // the same store, for looking on and for what an operator does
	URL        string       // of the store, for the candidates; or
	Embedded   string       // the directory of the embedded store, which somebody hosts meanwhile
	Command    []string     // starts a candidate
	Duration   time.Duration
	TTL        time.Duration
	Candidates int
	Seed       uint64

	Tell     func(at time.Duration, fault string) // gets each fault
	Progress func(State)                          // is called twice a second, more seldom the longer it takes
}

// State is how a torture stands.
type State struct {
	At       time.Duration
	Terms    int
	Faults   int
	Overlaps int
	Last     string // the newest fault
}

// Outcome of a torture.
type Outcome string

// Outcomes.
const (
	Held      Outcome = "held"
	Disproved Outcome = "disproved"
	Unproved  Outcome = "not proved" // too little happened
)

// Verdict is what a torture found.
type Verdict struct {
	Outcome    Outcome        `json:"outcome"`
	Sentence   string         `json:"sentence"`
	Store      string         `json:"store"`
	Name       string         `json:"name"`
	Seconds    float64        `json:"seconds"`
	Candidates int            `json:"candidates"`
	TTL        time.Duration  `json:"ttl_ns"`
	Seed       uint64         `json:"seed,string"`
	Terms      int            `json:"terms"`
	Faults     map[string]int `json:"faults"`
	Without    []string       `json:"faults_left_out"`
	Why        string         `json:"faults_left_out_why,omitempty"`
	Overlaps   int            `json:"overlaps"`
	Longest    float64        `json:"longest_overlap_s"`
	Broken     string         `json:"contradiction,omitempty"`
	Acts       int            `json:"acts"`
	Stale      int            `json:"late_acts_refused_by_fence"`
	Acked      int            `json:"fenced_writes_acknowledged"`
	Lost       []string       `json:"fenced_writes_lost"`
	GapP50     float64        `json:"gap_p50_s"`
	GapP99     float64        `json:"gap_p99_s"`
	GapMax     float64        `json:"gap_max_s"`
	Recovered  bool           `json:"recovered"`
	Left       []string       `json:"left_behind"`
	Fell       string         `json:"candidates_said,omitempty"`

	leftErr error
	length  time.Duration
	many    int // faults in all
}

// judge fills in what was counted, and decides.
func (v *Verdict) judge(t tally, interrupted bool) {
	for _, n := range v.Faults {
		v.many += n
	}
	v.Terms, v.Overlaps, v.Longest, v.Broken = t.Terms, t.Overlaps, t.Longest.Seconds(), t.Broken
	v.Acts, v.Stale, v.Acked, v.Lost = t.Written, t.Stale, t.Acked, t.Lost
	v.GapP50, v.GapP99, v.GapMax = quantile(t.Gaps, 0.5).Seconds(), quantile(t.Gaps, 0.99).Seconds(),
		quantile(t.Gaps, 1).Seconds()
	if v.leftErr != nil {
		v.Left = append(v.Left, "not found out: "+v.leftErr.Error())
	}
	for _, list := range []*[]string{&v.Without, &v.Lost, &v.Left} {
		if *list == nil {
			*list = []string{} // not null in JSON
		}
	}
	v.Outcome, v.Sentence = v.decide(interrupted)
}

func (v *Verdict) decide(interrupted bool) (Outcome, string) {
	what := fmt.Sprintf("%s, %d terms and %d faults of %d kinds", v.length.Round(time.Second), v.Terms, v.many,
		len(v.Faults))
	switch {
	case v.Overlaps > 0 || v.Broken != "":
		return Disproved, fmt.Sprintf("DISPROVED: in %s, %s.", what, v.Broken)
	case len(v.Lost) > 0:
		return Disproved, fmt.Sprintf("DISPROVED: in %s, %d acknowledged writes were lost: %s.", what, len(v.Lost),
			v.Lost[0])
	case v.Terms < 2 || v.many == 0 || v.Acked == 0:
		return Unproved, fmt.Sprintf("Not proved: in %s, too little happened to say anything. Torture for longer.",
			what)
	case !v.Recovered && !interrupted:
		return Unproved, fmt.Sprintf("Not proved: in %s there were never two leaders, but after the last fault "+
			"nobody led again.", what)
	}
	return Held, fmt.Sprintf("The promise held: in %s there were never two leaders at once, no token went back, "+
		"and none of %d acknowledged writes was lost.",
		what, v.Acked)
}
