package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

var (
	_ driver.Exchanger  = (*lease)(nil)
	_ driver.Transferer = (*lease)(nil)
)

// maxText is how many bytes a name may have: it stands in an index, whose rows have at most 2,700.
const maxText = 2000

// fit refuses what PostgreSQL cannot keep as text.
func fit(texts ...string) error {
	for _, text := range texts {
		if len(text) > maxText {
			return fmt.Errorf("postgres: a name or ID of %d bytes, %.20q…: at most %d fit: %w",
				len(text), text, maxText, driver.ErrRefused)
		}
		if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			return fmt.Errorf("postgres: %q is not UTF-8 without zero bytes: %w", text, driver.ErrRefused)
		}
	}
	return nil
}

// isFinal says whether an error says that nothing happened, and nothing will.
func isFinal(err error) bool { return driver.IsFinal(err) || errors.Is(err, errBusy) }

// Claim implements [driver.Lease].
func (l *lease) Claim(ctx context.Context, claims ...driver.Claim) ([]driver.Place, error) {
	if err := driver.CheckClaims(claims...); err != nil || len(claims) == 0 {
		return nil, err
	}
	return l.take(ctx, "claim", claims, nil)
}

// Exchange implements [driver.Exchanger].
func (l *lease) Exchange(ctx context.Context, p driver.Place, c driver.Claim) (driver.Place, error) {
	if err := driver.CheckExchange(p, c); err != nil {
		return driver.Place{}, err
	}
	if err := fit(p.Name, p.Seat, p.ID); err != nil {
		return driver.Place{}, err
	}
	places, err := l.take(ctx, "exchange", []driver.Claim{c}, &p)
	if err != nil {
		return driver.Place{}, err
	}
	return places[0], nil
}

// taken is a row of the function take.
type taken struct {
	code    string
	slots   int
	token   int64
	held    bool
	remains int64
}

// take enters claims. If p is not nil it is given up before that, in the same step.
func (l *lease) take(ctx context.Context, verb string, claims []driver.Claim, p *driver.Place) ([]driver.Place, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	n := len(claims)
	names, seats, ids := make([]string, n), make([]string, n), make([]string, n)
	slots, values, tries := make([]int32, n), make([][]byte, n), make([]bool, n)
	for i, c := range claims {
		if err := fit(c.Name, c.Seat, c.ID); err != nil {
			return nil, err
		}
		names[i], seats[i], ids[i], slots[i], tries[i] = c.Name, c.Seat, c.ID, int32(c.Slots), c.Try
		values[i] = append([]byte{}, c.Value...)
	}
	generation := l.s.listener.generation()
	spend, err := l.beginTake(claims, p)
	if err != nil {
		return nil, err
	}
	args := []any{l.id, names, seats, slots, ids, values, tries}
	if p == nil {
		args = append(args, false, "", "", int64(0), false, []byte{}, "", []byte{})
	} else {
		journal, key, value := recordOf(*p)
		args = append(args, true, p.Seat, p.ID, int64(p.Token), spend, journal, key, value)
	}
	var rows []taken
	err = l.s.doUnfenced(ctx, verb, `SELECT * FROM {S}.take($1::text, $2::text[], $3::text[], $4::int[], $5::text[],
		$6::bytea[], $7::boolean[], $8::boolean, $9::text, $10::text, $11::bigint, $12::boolean, $13::bytea, $14::text,
		$15::bytea)`, args,
		func(r pgx.Rows) error {
			var t taken
			err := r.Scan(&t.code, &t.slots, &t.token, &t.held, &t.remains)
			rows = append(rows, t)
			return err
		})
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range claims {
		l.ids.entered(c.ID, err != nil && !isFinal(err))
	}
	if p != nil {
		released := err
		if err == nil && (len(rows) == 0 || rows[0].code != "ok") {
			released = driver.ErrGone // it was not given up
		}
		l.endReleaseLocked(*p, spend, released)
	}
	if err != nil {
		return nil, err
	}
	return l.takenLocked(claims, rows, generation)
}

// recordOf returns the record that a place carries, nothing if it cannot be kept.
func recordOf(p driver.Place) (journal []byte, key string, value []byte) {
	if p.Record == nil || driver.CheckRecord(p.Journal, *p.Record) != nil {
		return []byte{}, "", []byte{}
	}
	return []byte(p.Journal), p.Record.Key, append([]byte{}, p.Record.Value...)
}

// beginTake notes that claims are under way, and that p is being given up if it is not nil. It
// returns whether the server must keep a word against p's ID.
func (l *lease) beginTake(claims []driver.Claim, p *driver.Place) (spend bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isOver {
		return false, driver.ErrGone
	}
	for _, c := range claims {
		if l.ids.refused(c.ID) {
			return false, givenUp(c)
		}
	}
	for _, c := range claims {
		l.ids.calls[c.ID]++
		if o := l.claims[storeutil.SeatOf(c)]; o != nil && o.place.ID != c.ID {
			o.leaving = true // its removal is no news
		}
	}
	if p != nil {
		spend = l.beginReleaseLocked(*p)
	}
	return spend, nil
}

// givenUp is the error for a claim whose ID must not enter any more.
func givenUp(c driver.Claim) error {
	return fmt.Errorf("claim %s on %s was given up: %w", c.ID, c.Name, driver.ErrGone)
}

// takenLocked makes the answer of a call of take from its rows. The caller holds mu.
func (l *lease) takenLocked(claims []driver.Claim, rows []taken, generation int) (places []driver.Place, _ error) {
	if len(rows) == 0 {
		return nil, fmt.Errorf("postgres %s: claim: an answer without rows", l.s.hosts)
	}
	switch rows[0].code {
	case "gone":
		return nil, l.goneLocked("claim")
	case "spent":
		if len(claims) == 1 {
			l.ids.spent.Add(claims[0].ID)
		}
		return nil, givenUp(claims[0])
	case "misfit":
		for _, c := range claims { // the claims that they were to displace stay
			if o := l.claims[storeutil.SeatOf(c)]; o != nil {
				o.leaving = false
			}
		}
		c := claims[rows[0].token-1]
		return nil, driver.Misfit(c.Name, rows[0].slots, c.Slots)
	case "taken":
		for _, c := range claims { // the call has removed what the lease had on these seats
			if o := l.claims[storeutil.SeatOf(c)]; o != nil {
				l.ids.spent.Add(o.place.ID)
				o.forgetLocked()
			}
		}
		return nil, driver.ErrTaken
	}
	if rows[0].code != "ok" || len(rows) != len(claims) { // of functions that are not ours: did the claims enter?
		return nil, fmt.Errorf("postgres %s: claim: an answer %q with %d rows for %d claims",
			l.s.hosts, rows[0].code, len(rows), len(claims))
	}
	if l.isOver {
		return nil, driver.ErrGone
	}
	for i, c := range claims {
		t := rows[i]
		p := driver.Place{Name: c.Name, Seat: c.Seat, Slots: t.slots, ID: c.ID, Token: uint64(t.token), Held: t.held}
		l.enterLocked(p, time.Duration(t.remains)*time.Microsecond, generation)
		places = append(places, p)
	}
	return places, nil
}

// Release implements [driver.Lease].
func (l *lease) Release(ctx context.Context, places ...driver.Place) error {
	if err := ctx.Err(); err != nil || len(places) == 0 {
		return err
	}
	for _, p := range places {
		if err := fit(p.Name, p.Seat, p.ID); err != nil {
			return err
		}
	}
	n := len(places)
	names, seats, ids := make([]string, n), make([]string, n), make([]string, n)
	tokens, spend := make([]int64, n), make([]bool, n)
	journals, keys, values := make([][]byte, n), make([]string, n), make([][]byte, n)
	l.mu.Lock()
	if l.isOver {
		l.mu.Unlock()
		return nil // and no Claim can enter any more
	}
	for i, p := range places {
		names[i], seats[i], ids[i], tokens[i], spend[i] = p.Name, p.Seat, p.ID, int64(p.Token), l.beginReleaseLocked(p)
		journals[i], keys[i], values[i] = recordOf(p)
	}
	l.mu.Unlock()
	err := l.s.doUnfenced(ctx, "release", `SELECT {S}.release($1::text, $2::text[], $3::text[], $4::text[],
		$5::bigint[], $6::boolean[], $7::bytea[], $8::text[], $9::bytea[])`,
		[]any{l.id, names, seats, ids, tokens, spend, journals, keys, values}, nil)
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, p := range places {
		l.endReleaseLocked(p, spend[i], err)
	}
	return err
}

// beginReleaseLocked notes that its owner gives a place up. It returns whether the server must keep
// a word against the place's ID. The caller holds mu.
func (l *lease) beginReleaseLocked(p driver.Place) (spend bool) {
	o := l.ownLocked(p)
	spend = l.ids.release(p.ID, o != nil)
	if o != nil && (p.Token == 0 || p.Token == o.place.Token) {
		o.leaving = true
		if !spend { // a Claim that begins now could come to the server after the release
			l.ids.releasing[p.ID]++
		}
	}
	return spend
}

// endReleaseLocked notes the outcome of a call that was to give a place up. The caller holds mu.
func (l *lease) endReleaseLocked(p driver.Place, spend bool, err error) {
	l.ids.released(p.ID, spend, err)
	if err == nil {
		l.releasedLocked(p)
	}
}

// releasedLocked notes that a place was given up. The caller holds mu.
func (l *lease) releasedLocked(p driver.Place) {
	if o := l.ownLocked(p); o != nil {
		if p.Token != 0 && p.Token != o.place.Token {
			return // another claim was meant, which is gone
		}
		o.forgetLocked()
	}
	l.ids.spent.Add(p.ID)
}

// Transfer implements [driver.Transferer].
func (l *lease) Transfer(ctx context.Context, p driver.Place, successor uint64) error {
	if err := fit(p.Name, p.Seat, p.ID); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if successor > 1<<63-1 {
		successor = 0 // which nobody has
	}
	l.mu.Lock()
	if l.isOver {
		l.mu.Unlock()
		return driver.ErrGone
	}
	if o := l.ownLocked(p); o != nil {
		o.leaving = true
	}
	l.mu.Unlock()
	journal, key, value := recordOf(p)
	code := ""
	err := l.s.doUnfenced(ctx, "transfer", `SELECT {S}.transfer($1::text, $2::text, $3::text, $4::text, $5::bigint,
		$6::bigint, $7::boolean, $8::bytea, $9::text, $10::bytea)`,
		[]any{l.id, p.Name, p.Seat, p.ID, int64(p.Token), int64(successor), true, journal, key, value}, into(&code))
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if code == "ok" {
		l.releasedLocked(p)
		return nil
	}
	if o := l.ownLocked(p); o != nil {
		o.leaving = false
		o.lookLocked() // its end was no news during the call
	}
	switch code {
	case "noheir":
		return fmt.Errorf("%s: token %d: %w", p.Name, successor, driver.ErrNoSuccessor)
	case "own":
		return fmt.Errorf("%s: the successor's claim is of the same lease: %w", p.Name, driver.ErrRefused)
	case "refused":
		return fmt.Errorf("%s under token %d is not held alone: %w", p.Name, p.Token, driver.ErrRefused)
	}
	return l.missing("transfer", p)
}

// Update implements [driver.Lease].
func (l *lease) Update(ctx context.Context, p driver.Place, value []byte) error {
	if err := fit(p.Name, p.Seat, p.ID); err != nil {
		return err
	}
	if l.ended() {
		return driver.ErrGone
	}
	there := false
	err := l.s.do(ctx, "update",
		"SELECT {S}.replace_value($1::text, $2::text, $3::text, $4::text, $5::bigint, $6::bytea)",
		[]any{l.id, p.Name, p.Seat, p.ID, int64(p.Token), append([]byte{}, value...)}, into(&there))
	if err == nil && !there {
		err = l.missing("update", p)
	}
	return err
}

// missing is the error for a place that does not stand.
func (l *lease) missing(verb string, p driver.Place) error {
	return fmt.Errorf("postgres %s: %s: there is no claim %s on %s: %w",
		l.s.hosts, verb, p.ID, p.Name, driver.ErrGone)
}
