package patroni

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// failover is the key failover: what a tool has asked for.
type failover struct {
	Leader    string
	Candidate string
	At        time.Time // zero: at once
}

// stale is how late a scheduled switchover may be carried out. After that nobody expects it any
// more.
const stale = time.Minute

func (f failover) none() bool { return f.Leader == "" && f.Candidate == "" && f.At.IsZero() }

// parseFailover reads the key failover, as patronictl and Patroni write it. Empty: nothing is asked
// for.
func parseFailover(value []byte) (failover, error) {
	if len(value) == 0 {
		return failover{}, nil
	}
	var k struct {
		Leader, Member *string
		At             *string `json:"scheduled_at"`
	}
	if json.Unmarshal(value, &k) != nil {
		leader, candidate, _ := strings.Cut(string(value), ":") // an old form: LEADER:CANDIDATE
		if strings.ContainsAny(leader, `{}[]"`) {
			return failover{}, errors.New("it is neither JSON nor LEADER:CANDIDATE")
		}
		return failover{Leader: strings.TrimSpace(leader), Candidate: strings.TrimSpace(candidate)}, nil
	}
	f := failover{Leader: value0(k.Leader), Candidate: value0(k.Member)}
	if at := value0(k.At); at != "" {
		var err error
		if f.At, err = parseTime(at); err != nil {
			return failover{}, err
		}
	}
	return f, nil
}

func value0(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// key is the value of the key failover.
func (f failover) key() []byte {
	k := map[string]string{}
	for name, value := range map[string]string{"leader": f.Leader, "member": f.Candidate} {
		if value != "" {
			k[name] = value
		}
	}
	if !f.At.IsZero() {
		k["scheduled_at"] = f.At.Format("2006-01-02T15:04:05.999999-07:00")
	}
	text, _ := json.Marshal(k)
	return text
}

// parseTime reads a time in ISO 8601, with a time zone.
func parseTime(text string) (time.Time, error) {
	for _, layout := range []string{"2006-01-02T15:04:05.999999999Z07:00", "2006-01-02 15:04:05.999999999Z07:00",
		"2006-01-02T15:04Z07:00", "2006-01-02 15:04Z07:00"} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is no time in ISO 8601 with a time zone, such as 2026-01-31T04:00:00+00:00",
		text)
}

// obey says what the member that holds the term is to do about a request: nothing yet, a
// switchover, or else why it is dropped. nobody says that it has found nobody to promote yet.
func (f failover) obey(me string, leads, nobody bool, now time.Time) (act bool, drop string) {
	switch {
	case f.none():
		return false, "" // patronictl clears the key by an empty request
	case !f.At.IsZero() && f.At.After(now):
		return false, ""
	case !f.At.IsZero() && now.Sub(f.At) > stale:
		return false, fmt.Sprintf("it was scheduled for %s, and nobody led then", f.At.Format(time.RFC3339))
	case nobody:
		return false, "nobody is the primary: a safe election is under way; if machines are lost for good, " +
			"'primacy postgres failover' says what may be lost"
	case f.Leader != "" && f.Leader != me:
		return false, fmt.Sprintf("%s is the primary, not %s", me, f.Leader)
	case f.Candidate == me:
		return false, me + " is the primary already"
	case !leads: // it is being promoted, or its server was not heard for a moment
		return false, ""
	}
	return true, ""
}
