package pause

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// All pauses of a store stand in one journal, so that one read shows them all. Each record is one
// change, under the next number: two who write at a time cannot both have it, and the second reads
// again what it may do.
//
// The journal keeps only the newest records. So before anybody writes a record of his own, he
// writes again what stands and is more than half of them back: each pause in a record of its own,
// and admissions many in one. No pause is forgotten while it stands. Nor is an admission, up to
// some hundreds: a leader that is slow to stop still has its successor elected after a drain of all
// others.
const (
	journal  = "pauses"
	kept     = 100      // records that are kept, and read
	old      = 50       // what has a record with so many newer ones is repeated
	repeated = 32 << 10 // bytes of admissions that are repeated, the newest: on Kubernetes a journal has 96 KiB
	maxSeq   = 1 << 60  // a larger number is not ours
)

// What an entry does.
const (
	doPause  = "pause"
	doResume = "resume"
	doAdmit  = "admit"
	doKeep   = "keep" // repeats admissions
)

// entry is one change, as the JSON of a record. Readers ignore fields that they do not know, and no
// field ever gets another meaning.
type entry struct {
	Version     int       `json:"v"`
	Do          string    `json:"do"`
	ID          string    `json:"id"` // random: by it a writer knows its own record again
	Scope       string    `json:"scope"`
	For         string    `json:"for,omitempty"`          // who is admitted
	Token       uint64    `json:"token,string,omitempty"` // under which token
	By          string    `json:"by,omitempty"`
	Reason      string    `json:"reason,omitempty"`
	At          time.Time `json:"at"`
	Until       time.Time `json:"until,omitzero"`
	NoElections bool      `json:"no_elections,omitempty"`

	Admissions []Admission `json:"admissions,omitempty"` // of doKeep
}

// book is what the journal says at some time.
type book struct {
	seq        uint64 // of the newest record; 0: there is none
	pauses     map[string]Pause
	admissions map[admittee]Admission
}

// admittee is who is admitted: no other claim ever has that token.
type admittee struct {
	name, id string
	token    uint64
}

func key(seq uint64) string { return fmt.Sprintf("%020d", seq) }

// read returns what stands now, nil on a store that keeps no records.
func read(ctx context.Context, st driver.Store) (*book, error) {
	j, ok := st.(driver.Journal)
	if !ok {
		return nil, nil
	}
	records, err := j.Records(ctx, journal, "", kept)
	if err != nil {
		return nil, fmt.Errorf("read the pauses: %w", err)
	}
	b := &book{pauses: map[string]Pause{}, admissions: map[admittee]Admission{}}
	for _, r := range slices.Backward(records) {
		b.take(r)
	}
	b.forget(time.Now())
	return b, nil
}

// take takes in one record, which anybody who may write to the store may have written.
func (b *book) take(r driver.Record) {
	seq, err := strconv.ParseUint(r.Key, 10, 64)
	if err != nil || r.Key != key(seq) || seq > maxSeq {
		return
	}
	b.seq = max(b.seq, seq)
	var e entry
	if json.Unmarshal(r.Value, &e) != nil || e.Version < 1 {
		return
	}
	switch e.Do {
	case doPause:
		b.pauses[e.Scope] = Pause{Scope: e.Scope, By: e.By, Reason: e.Reason, Since: e.At, Until: e.Until,
			NoElections: e.NoElections, seq: seq}
	case doResume:
		delete(b.pauses, e.Scope)
	case doAdmit:
		b.admit(Admission{Name: e.Scope, ID: e.For, Token: e.Token, By: e.By, Until: e.Until}, seq)
	case doKeep:
		for _, a := range e.Admissions {
			b.admit(a, seq)
		}
	}
}

func (b *book) admit(a Admission, seq uint64) {
	a.seq = seq
	b.admissions[a.admittee()] = a
}

func (a Admission) admittee() admittee { return admittee{a.Name, a.ID, a.Token} }

// forget drops what has ended by itself.
func (b *book) forget(now time.Time) {
	for scope, p := range b.pauses {
		if !p.StandsAt(now) {
			delete(b.pauses, scope)
		}
	}
	maps.DeleteFunc(b.admissions, func(_ admittee, a Admission) bool { return !now.Before(a.Until) })
}

// errForbidden says that a pause forbids an election.
var errForbidden = errors.New("nobody new is elected")

// over returns the strongest pause that one of the names is under, nil if there is none.
func (b *book) over(names ...string) *Pause {
	return Strongest(slices.Collect(maps.Values(b.pauses)), names...)
}

// forbids returns the pause that forbids elections of the names, nil if none does.
func (b *book) forbids(names ...string) *Pause {
	var all []Pause
	for _, p := range b.pauses {
		if p.NoElections {
			all = append(all, p)
		}
	}
	return Strongest(all, names...)
}

// admits says whether the session with that ID may be elected under that token. It compares no
// clock of who admitted it with one of who paused: an admission counts whether the pause was set
// before it, after it or anew. No other term ever has that token, so an admission lets one term
// begin, and nobody needs to write that it was used.
func (b *book) admits(name, id string, token uint64) bool {
	_, ok := b.admissions[admittee{name, id, token}]
	return ok && token != 0
}

// aged returns the entry that repeats what the journal may forget soon: one pause, or as many
// admissions as fit into a record. False: nothing is so old.
func (b *book) aged() (entry, bool) {
	for _, p := range b.pauses {
		if p.seq+old <= b.seq {
			return entry{Version: 1, ID: rand.Text(), Do: doPause, Scope: p.Scope, By: p.By, Reason: p.Reason,
				At: p.Since, Until: p.Until, NoElections: p.NoElections}, true
		}
	}
	e := entry{Version: 1, ID: rand.Text(), Do: doKeep, At: time.Now().UTC(), Admissions: b.agedAdmissions()}
	return e, len(e.Admissions) > 0
}

// agedAdmissions returns the admissions that are repeated now, in one record: none unless one is
// old. With it go those that are half as old. Otherwise each new record would have the next one
// repeated, in a record of its own.
func (b *book) agedAdmissions() (all []Admission) {
	var oldest []Admission
	sizes, total := map[admittee]int{}, 0
	for _, a := range b.newestAdmissions() {
		value, _ := encode(a)
		sizes[a.admittee()] = len(value) + 1
		if total += len(value) + 1; total > repeated {
			break // the journal may forget the rest
		}
		oldest = append(oldest, a)
	}
	slices.SortStableFunc(oldest, func(x, y Admission) int { return cmp.Compare(x.seq, y.seq) })
	if len(oldest) == 0 || oldest[0].seq+old > b.seq {
		return nil
	}
	const room = driver.MaxRecord - 256 // beside what else is in the entry
	used := 0
	for _, a := range oldest {
		if used += sizes[a.admittee()]; used > room || a.seq+old/2 > b.seq {
			break
		}
		all = append(all, a)
	}
	return all
}

// newestAdmissions returns the admissions, those that end last first.
func (b *book) newestAdmissions() []Admission {
	return slices.SortedFunc(maps.Values(b.admissions), func(x, y Admission) int {
		return cmp.Or(y.Until.Compare(x.Until), cmp.Compare(x.Name, y.Name), cmp.Compare(x.ID, y.ID),
			cmp.Compare(x.Token, y.Token))
	})
}

// write appends e if check allows it. If another process has written in between, it reads the book
// and calls check anew. It repeats calls whose outcome is unknown until ctx ends.
func write(ctx context.Context, st driver.Store, e entry, check func(*book) error) error {
	j, ok := st.(driver.Journal)
	if !ok {
		return ErrNoJournal
	}
	e.Version, e.ID = 1, rand.Text()
	w := writer{st: st, j: j, e: e, check: check}
	for try, lost := 0, 0; ; {
		done, err := w.step(ctx)
		switch {
		case done, driver.IsFinal(err): // forbidden by check, or refused by the store
			return err
		case err == nil: // a pause was repeated, or another has written
			try = 0
			if lost++; lost > 1 && wait(ctx, mathrand.IntN(min(lost, 5))) != nil { // else N writers make N² tries
				return fmt.Errorf("pause: %w; others write all the time", context.Cause(ctx))
			}
		case wait(ctx, try) != nil:
			return fmt.Errorf("pause: %w; last: %w", context.Cause(ctx), err)
		default:
			try++
		}
	}
}

// writer writes one entry.
type writer struct {
	st    driver.Store
	j     driver.Journal
	e     entry
	check func(*book) error
	tried uint64 // the number that e was sent under; 0: none, or another record has it
}

// step makes one try. Done says that e stands, or with an error that check forbids it.
func (w *writer) step(ctx context.Context) (done bool, err error) {
	if w.tried == 0 {
		b, err := read(ctx, w.st)
		if err != nil {
			return false, err
		}
		if err := w.check(b); err != nil {
			return true, err
		}
		if b.seq >= maxSeq {
			return true, fmt.Errorf("pause: %w: the journal %q has a foreign record %d: nothing can be added",
				ErrInvalid, journal, b.seq)
		}
		if repeat, aged := b.aged(); aged {
			_, err := put(ctx, w.j, b.seq+1, repeat)
			return false, err // the next step reads who has written
		}
		w.tried = b.seq + 1
	}
	ours, err := put(ctx, w.j, w.tried, w.e)
	if err == nil && ours {
		ours, err = w.isKept(ctx)
	}
	if err == nil && !ours { // another has or had that number, so no earlier try can stand under it either
		w.tried = 0
	}
	return ours && err == nil, err
}

// isKept says whether e is among the records that are read. Others may have written so much since
// the number was chosen that theirs of that number is forgotten: then a record that comes late is
// added where nobody reads it.
func (w *writer) isKept(ctx context.Context) (bool, error) {
	records, err := w.j.Records(ctx, journal, "", kept)
	return slices.ContainsFunc(records, func(r driver.Record) bool { return w.e.is(r) }), err
}

// is says whether a record is that of e.
func (e entry) is(r driver.Record) bool {
	var was entry
	return json.Unmarshal(r.Value, &was) == nil && was.ID == e.ID
}

// put appends an entry under a number, and says whether it stands there. A record that is there
// already is ours only if it has e.ID: an earlier try whose answer was lost.
func put(ctx context.Context, j driver.Journal, seq uint64, e entry) (ours bool, err error) {
	value, err := encode(e)
	if err != nil {
		return false, fmt.Errorf("pause: %w: %w", ErrInvalid, err)
	}
	there, added, err := j.Append(ctx, journal, driver.Record{Key: key(seq), Value: value}, kept)
	if err != nil || added {
		return added, err
	}
	return e.is(there), nil
}

// encode returns v as JSON in which <, > and & stand as they are. Escaped for HTML they would be
// six times as long, and a journal that is bounded by bytes would hold fewer records than it must.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// wait waits before the next try: 50 ms, doubling to a second, by about half.
func wait(ctx context.Context, try int) error {
	most := min(time.Second, 50*time.Millisecond<<min(try, 5))
	t := time.NewTimer(most/2 + mathrand.N(most/2)) // who have failed together do not come again together
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
