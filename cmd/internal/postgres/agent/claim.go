package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/internal/boottime"
)

// tellEvery is how often a member says where its WAL ends, for `primacy postgres list`.
const tellEvery = 2 * time.Second

// Said is what a member says of itself, as the value of its claim.
type Said struct {
	Address string       `json:"addr"` // where its PostgreSQL listens
	Phase   core.Phase   `json:"phase"`
	Seq     uint64       `json:"seq,string"` // of the record that it knows
	Life    string       `json:"incarnation,omitempty"`
	Answer  *core.Answer `json:"answer,omitempty"`
	NoSync  bool         `json:"nosync,omitempty"`  // it must not be waited for
	Leaving bool         `json:"leaving,omitempty"` // that is so for it is to be made anew
	// Whom a primary hands over to.
	Priority   int  `json:"priority,omitempty"`
	NoFailover bool `json:"nofailover,omitempty"`

	LSN      core.LSN      `json:"lsn,omitempty"` // where its WAL ends, at most some seconds ago
	Timeline core.Timeline `json:"timeline,omitempty"`
	Why      string        `json:"why,omitempty"`
	// The last task of a person that it has carried out; see [core.Task].
	Instructed uint64 `json:"instructed,string,omitempty"`
	// Where the primary's WAL ended when this member last heard, and on which timeline. That is 0
	// where a former version has noted it.
	Heard   core.LSN      `json:"heard,omitempty"`
	HeardOn core.Timeline `json:"heard_timeline,omitempty"`
	// The version of the shared configuration that this member has judged last, and why that is not
	// in force here; empty: it is.
	Config  uint64 `json:"config,string,omitempty"`
	Refused string `json:"refused,omitempty"`
	Pending string `json:"pending,omitempty"` // parameters that wait for a restart, with ", " between
	Held    string `json:"held,omitempty"`    // those that stay larger than they were asked for
	// Settings that its server has from elsewhere than where primacy sets them, in the same way.
	Overridden string `json:"overridden,omitempty"`
	Full       string `json:"full,omitempty"` // directories whose disk is full, or nearly so, in the same way
}

// SaidBy returns what a candidate of an election says of itself, if it is a member of a PostgreSQL
// cluster.
func SaidBy(election string, value []byte) (s Said, ok bool) {
	ok = strings.HasPrefix(election, Prefix) && json.Unmarshal(value, &s) == nil && s.Phase != ""
	return s, ok
}

// String says it to people, in a line.
func (s Said) String() string {
	text := fmt.Sprintf("%s: %s", s.Address, s.Phase)
	if s.Timeline != 0 {
		text += fmt.Sprintf(", timeline %d, WAL %v", s.Timeline, s.LSN)
	}
	if s.Why != "" {
		text += ": " + s.Why
	}
	if s.Overridden != "" {
		text += "; set past primacy: " + s.Overridden
	}
	if s.Full != "" {
		text += "; the disk is full: " + s.Full
	}
	return text
}

// claim is this member's place in the election. Its value is what the member says of itself. It
// belongs to the goroutine of Run, but for json.
type claim struct {
	election *primacy.Election
	log      *slog.Logger
	ttl      time.Duration
	said     Said
	told     time.Duration // when where its WAL ends was said
	json     atomic.Value  // []byte: said
	telling  sync.Mutex    // held while the store is told
}

// say changes what this member says of itself.
func (c *claim) say(change func(*Said)) {
	change(&c.said)
	c.json.Store(c.said.value())
}

// value returns s as JSON. What people read is cut until the store takes it: a larger value is
// refused as a whole, and with it the answer that a survey waits for.
func (s Said) value() []byte {
	for most := primacy.MaxValue; ; most /= 2 {
		for _, text := range []*string{&s.Why, &s.Refused} {
			if len(*text) > most {
				*text = strings.ToValidUTF8((*text)[:most], "") + "…"
			}
		}
		for _, list := range []*string{&s.Pending, &s.Held, &s.Overridden, &s.Full} {
			if len(*list) > most {
				*list = (*list)[:max(0, strings.LastIndex((*list)[:most], ", "))]
			}
		}
		value, err := json.Marshal(s)
		if err != nil {
			panic(err) // it holds nothing that JSON cannot
		}
		if len(value) <= primacy.MaxValue || most == 0 {
			return value
		}
	}
}

// report says what has changed, to people and to the other members. A new end of the WAL alone is
// said now and then.
func (c *claim) report(change func(*Said)) {
	was, is := c.said, c.said
	change(&is)
	if is.Phase != was.Phase || is.Why != was.Why && is.Why != "" {
		c.log.Log(context.Background(), levelOf(is.Phase), "the member is "+string(is.Phase), "why", is.Why)
	}
	now := boottime.Now()
	if now-c.told < tellEvery {
		was.LSN, was.Timeline, was.Heard, was.HeardOn = is.LSN, is.Timeline, is.Heard, is.HeardOn
	}
	if is == was {
		return
	}
	c.told = now
	c.say(change)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), c.ttl)
		defer cancel()
		_ = c.tell(ctx) // the session repeats it
	}()
}

// tell has the store show what was said last, and returns nil when it does. One tells at a time: an
// older value that came late would hide an answer, which a survey waits for.
func (c *claim) tell(ctx context.Context) error {
	c.telling.Lock()
	defer c.telling.Unlock()
	return c.election.Restate(ctx, c.json.Load().([]byte))
}

func levelOf(p core.Phase) slog.Level {
	if p == core.PhaseBroken {
		return slog.LevelError
	}
	return slog.LevelInfo
}
