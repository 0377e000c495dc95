package redlockstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/boottime"
)

// attempt is one try of a claim, and what may stand of it on each server. No two tries have the
// same value: what deletes the keys of one that failed cannot hurt the next.
type attempt struct {
	c   *claim
	own string // what its values begin with
	on  []state
	off chan struct{} // closed when it was given up and can stand on no majority any more
}

// state is what may stand of a try on one server. The lease's lock guards it.
type state struct {
	set    bool          // the key may be there
	flying int           // calls that may set it and have not returned
	late   time.Duration // by the boot clock, until when one that was given up may set it
	given  bool          // it is being left
	clear  bool          // it was: nothing is there, and nothing can come
}

// info is what observers see of a claim. It stands behind the value's beginning.
type info struct {
	Owner string `json:"o"`
	Lease string `json:"l"`
	Value []byte `json:"v,omitempty"`
}

const (
	ownLen   = 32
	stampLen = 10 // the number of updates, behind it
)

// valueLocked is what the claim's keys hold. The caller holds l.mu.
func (a *attempt) valueLocked() string {
	text, _ := json.Marshal(info{a.c.l.owner, a.c.l.id, a.c.Value}) // strings and bytes only: it cannot fail
	return fmt.Sprintf("%s%010d%s", a.own, a.c.updates, text)
}

// parse reads a value of ours.
func parse(v string) (own, stamp string, in info, ok bool) {
	if len(v) < ownLen+stampLen || strings.Trim(v[:ownLen], "0123456789abcdef") != "" {
		return "", "", in, false
	}
	own, stamp = v[:ownLen], v[ownLen:ownLen+stampLen]
	if _, err := strconv.ParseUint(stamp, 10, 64); err != nil ||
		json.Unmarshal([]byte(v[ownLen+stampLen:]), &in) != nil {
		return "", "", in, false
	}
	return own, stamp, in, true
}

// newAttemptLocked begins another try of a claim. The caller holds l.mu.
func (c *claim) newAttemptLocked() *attempt {
	l := c.l
	l.tries++ // of the lease, not of the claim: the ID of one that was taken back may come again
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%q\n%d", l.id, c.ID, l.tries))
	c.cur = &attempt{
		c: c, own: hex.EncodeToString(sum[:ownLen/2]), on: make([]state, len(l.s.servers)), off: make(chan struct{}),
	}
	return c.cur
}

// round asks all servers at once to set the keys of these tries, and returns as soon as each is
// decided.
func (l *lease) round(ctx context.Context, tries []*attempt) []outcome {
	answers := askAll(l.s, func(v *server) ([]any, error) { return l.enterAt(v, tries) })
	tallies := make([]tally, len(tries))
	got := make([]outcome, len(tries))
	count := newCount(l.s, 0) // for what the servers that failed have said
	err := gather(ctx, l.s, answers, func(a values) bool {
		count.add(a, 0)
		for i := range tallies {
			tallies[i].add(l.s, a, i)
		}
		return !slices.ContainsFunc(tallies, func(t tally) bool { return !t.decided(l.s) })
	})
	for i, t := range tallies {
		if got[i] = t.outcome(l.s, count); err != nil {
			got[i] = outcome{err: count.error(err)}
		}
	}
	return got
}

// tally counts what the servers said of one try.
type tally struct {
	own, other, none int             // none: no answer, or one that does not count
	left             []time.Duration // of the keys in the way
}

func (t *tally) add(s *Store, a values, i int) {
	if a.err != nil || len(a.got) < 2*i+2 {
		t.none++
		return
	}
	is, _ := a.got[2*i].(string)
	ms, _ := a.got[2*i+1].(int64)
	switch {
	case is == "own" && s.servers[a.at].guarded(boottime.Now()) <= 0:
		t.own++
	case is == "other":
		t.other++
		if ms > 0 {
			t.left = append(t.left, time.Duration(ms)*time.Millisecond)
		}
	default:
		t.none++
	}
}

// decided says whether nothing that is still to come can change the outcome: that of one who fails
// depends on why.
func (t *tally) decided(s *Store) bool {
	waiting := len(s.servers) - t.own - t.other - t.none
	return t.own >= s.quorum || waiting == 0 || t.own+waiting < s.quorum && t.own+t.other >= s.quorum
}

// outcome says what the counts mean. Taken is only what others may hold, or as many do as each keep
// others from it.
func (t *tally) outcome(s *Store, n *count) outcome {
	if t.own >= s.quorum {
		return outcome{held: true}
	}
	if t.other == 0 || t.other+t.own < s.quorum {
		return outcome{err: n.error(nil)}
	}
	slices.Sort(t.left)
	o := outcome{split: t.own > 0}
	if need := s.quorum - t.own; need <= len(t.left) {
		o.free = t.left[need-1] + time.Millisecond
	}
	return o
}

// enterAt asks one server to set the keys of these tries, and keeps account of what may stand
// there.
func (l *lease) enterAt(v *server, tries []*attempt) ([]any, error) {
	keys, args := []string{l.s.revoked(l.id)}, []any{v.latest(l.limit), l.ttl.Milliseconds()}
	l.mu.Lock()
	for _, a := range tries {
		if a.c.out || l.ended || a.on[v.at].given {
			l.mu.Unlock()
			return nil, fmt.Errorf("%s was given up: %w", a.c.Name, driver.ErrGone)
		}
	}
	for _, a := range tries {
		a.on[v.at].flying++
		keys = append(keys, l.s.key(a.c.Name), l.s.mark(a.own))
		args = append(args, a.valueLocked(), l.s.channel(a.c.Name))
	}
	l.mu.Unlock()
	got, err := v.call(enter, l.limit, keys, args...)
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, a := range tries {
		p := &a.on[v.at]
		p.flying--
		switch {
		case err == nil && len(got) > 2*i:
			p.set = p.set || got[2*i] == "own"
		case !isUnsent(err):
			p.set = true // as far as we know
			p.late = boottime.Now() + 2*straying(l.limit)
		}
		if a.on[v.at].given {
			a.noteOffLocked()
		}
	}
	return got, err
}
