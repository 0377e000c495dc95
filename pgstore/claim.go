package pgstore

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/primacy-go/primacy/driver"
)

// took is a row of take.
type took struct {
	code    string
	slots   int
	token   int64
	held    bool
	remains int64
}

// Claim implements [driver.Lease].
func (l *lease) Claim(ctx context.Context, claims ...driver.Claim) ([]driver.Place, error) {
	if err := driver.CheckClaims(claims...); err != nil || len(claims) == 0 {
		return nil, err
	}
	return l.take(ctx, "claim", claims, nil)
}

// take enters claims, and gives p up before that if it is not nil.
func (l *lease) take(ctx context.Context, verb string, claims []driver.Claim, p *driver.Place) ([]driver.Place, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	names := make([]string, len(claims))
	seats, ids := make([]string, len(claims)), make([]string, len(claims))
	slots, values, tries := make([]int32, len(claims)), make([][]byte, len(claims)), make([]bool, len(claims))
	for i, c := range claims {
		if err := fit(c.Name, c.Seat, c.ID); err != nil {
			return nil, err
		}
		names[i], seats[i], ids[i], slots[i], tries[i] = c.Name, c.Seat, c.ID, int32(c.Slots), c.Try
		if values[i] = c.Value; c.Value == nil {
			values[i] = []byte{}
		}
	}
	heard := l.s.ear.generation()
	spend, err := l.begin(claims, p)
	if err != nil {
		return nil, err
	}
	args := append([]any{l.id, names, seats, slots, ids, values, tries}, dropArgs(p, spend)...)
	var rows []took
	err = l.s.patiently(ctx, verb, "SELECT * FROM {S}.take($1::text, $2::text[], $3::text[], $4::int[], $5::text[], $6::bytea[], $7::boolean[], "+
		"$8::boolean, $9::text, $10::text, $11::bigint, $12::boolean, $13::bytea, $14::text, $15::bytea)", args, func(r pgx.Rows) error {
		rows = append(rows, took{})
		t := &rows[len(rows)-1]
		return r.Scan(&t.code, &t.slots, &t.token, &t.held, &t.remains)
	})
	return l.entered(claims, p, spend, rows, err, heard)
}

// maxText is how many bytes a name may have: it stands in an index, whose rows have at most 2,700.
const maxText = 2000

// fit refuses what PostgreSQL cannot keep as text.
func fit(texts ...string) error {
	for _, text := range texts {
		if len(text) > maxText {
			return fmt.Errorf("postgres: a name or ID of %d bytes, %.20q…: at most %d fit: %w", len(text), text, maxText, driver.ErrRefused)
		}
		if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			return fmt.Errorf("postgres: %q is not UTF-8 without zero bytes: %w", text, driver.ErrRefused)
		}
	}
	return nil
}

// dropArgs are take's arguments for the place that is given up.
func dropArgs(p *driver.Place, spend bool) []any {
	if p == nil {
		return []any{false, "", "", int64(0), false, []byte{}, "", []byte{}}
	}
	journal, key, value := recordOf(*p)
	return []any{true, p.Seat, p.ID, int64(p.Token), spend, journal, key, value}
}

// recordOf returns the record that a place carries, nothing if it cannot be kept.
func recordOf(p driver.Place) (journal []byte, key string, value []byte) {
	if p.Record == nil || driver.CheckRecord(p.Journal, *p.Record) != nil {
		return []byte{}, "", []byte{}
	}
	return []byte(p.Journal), p.Record.Key, append([]byte{}, p.Record.Value...)
}

// begin notes that claims are under way.
func (l *lease) begin(claims []driver.Claim, p *driver.Place) (spend bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isOver {
		return false, driver.ErrGone
	}
	for _, c := range claims {
		if l.spent.has(c.ID) || l.leaving[c.ID] > 0 {
			return false, fmt.Errorf("claim %s on %s was given up: %w", c.ID, c.Name, driver.ErrGone)
		}
	}
	for _, c := range claims {
		l.calls[c.ID]++
		if st := l.stands[seat{c.Name, c.Seat}]; st != nil && st.place.ID != c.ID {
			st.leaving = true // its removal is no news
		}
	}
	if p != nil {
		spend = l.leave(*p)
	}
	return spend, nil
}

// leave notes that a place is being given up by its owner, and says whether a call that may enter its ID can still come. The caller has the mutex.
func (l *lease) leave(p driver.Place) (spend bool) {
	st := l.stands[seat{p.Name, p.Seat}]
	known := st != nil && st.place.ID == p.ID
	spend = l.calls[p.ID] > 0 || l.doubt[p.ID] || !known && !l.spent.has(p.ID)
	if known && (p.Token == 0 || p.Token == st.place.Token) {
		st.leaving = true
		if !spend { // a call of Claim that begins now could come to the server after the release, which leaves no word against it there
			l.leaving[p.ID]++
		}
	}
	return spend
}

// left notes the outcome of a call that gives a place up. After an unknown one no call may enter the ID any more. The caller has the mutex.
func (l *lease) left(p driver.Place, spend bool, err error) {
	if !spend && l.leaving[p.ID] > 0 {
		if l.leaving[p.ID]--; l.leaving[p.ID] == 0 {
			delete(l.leaving, p.ID)
		}
		if err != nil && !isFinal(err) {
			l.spent.add(p.ID)
		}
	}
	if err == nil {
		l.released(p)
	}
}

// entered notes the outcome of a call of take, and makes its answer.
func (l *lease) entered(claims []driver.Claim, p *driver.Place, spend bool, rows []took, err error, heard int) (places []driver.Place, _ error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	unknown := err != nil && !isFinal(err)
	for _, c := range claims {
		if l.calls[c.ID]--; l.calls[c.ID] == 0 {
			delete(l.calls, c.ID)
		}
		if unknown {
			l.doubt[c.ID] = true
		}
	}
	if p != nil {
		done := err
		if err == nil && (len(rows) == 0 || rows[0].code != "ok") {
			done = driver.ErrGone // it was not given up
		}
		l.left(*p, spend, done)
	}
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("postgres %s: claim: an answer without rows", l.s.hosts)
	}
	first := claims[0]
	switch rows[0].code {
	case "ok":
	case "gone":
		l.mu.Unlock()
		err := l.gone("claim")
		l.mu.Lock()
		return nil, err
	case "spent":
		if len(claims) == 1 {
			l.spent.add(first.ID)
		}
		return nil, fmt.Errorf("claim %s on %s was given up: %w", first.ID, first.Name, driver.ErrGone)
	case "misfit":
		l.stay(claims)
		c := claims[rows[0].token-1]
		return nil, driver.Misfit(c.Name, rows[0].slots, c.Slots)
	default: // taken: the call has removed what the lease had on these seats
		for _, c := range claims {
			if st := l.stands[seat{c.Name, c.Seat}]; st != nil {
				l.spent.add(st.place.ID)
				l.forget(st)
			}
		}
		return nil, driver.ErrTaken
	}
	if l.isOver {
		return nil, driver.ErrGone
	}
	for i, c := range claims {
		place := driver.Place{Name: c.Name, Seat: c.Seat, Slots: rows[i].slots, ID: c.ID, Token: uint64(rows[i].token), Held: rows[i].held}
		l.stand(place, time.Duration(rows[i].remains)*time.Microsecond, heard)
		places = append(places, place)
	}
	return places, nil
}

// stay takes back that claims displace others: they were refused. The caller has the mutex.
func (l *lease) stay(claims []driver.Claim) {
	for _, c := range claims {
		if st := l.stands[seat{c.Name, c.Seat}]; st != nil {
			st.leaving = false
		}
	}
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
		names[i], seats[i], ids[i], tokens[i], spend[i] = p.Name, p.Seat, p.ID, int64(p.Token), l.leave(p)
		journals[i], keys[i], values[i] = recordOf(p)
	}
	l.mu.Unlock()
	err := l.s.patiently(ctx, "release", "SELECT {S}.release($1::text, $2::text[], $3::text[], $4::text[], $5::bigint[], $6::boolean[], $7::bytea[], $8::text[], $9::bytea[])",
		[]any{l.id, names, seats, ids, tokens, spend, journals, keys, values}, nil)
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, p := range places {
		l.left(p, spend[i], err)
	}
	return err
}

// released notes that a place was given up. The caller has the mutex.
func (l *lease) released(p driver.Place) {
	st := l.stands[seat{p.Name, p.Seat}]
	if st != nil && st.place.ID == p.ID {
		if p.Token != 0 && p.Token != st.place.Token {
			return // another one was meant, which is no more
		}
		l.forget(st)
	}
	l.spent.add(p.ID)
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
	if value == nil {
		value = []byte{}
	}
	err := l.s.do(ctx, "update", "SELECT {S}.replace_value($1::text, $2::text, $3::text, $4::text, $5::bigint, $6::bytea)",
		[]any{l.id, p.Name, p.Seat, p.ID, int64(p.Token), value}, func(r pgx.Rows) error { return r.Scan(&there) })
	if err == nil && !there {
		err = fmt.Errorf("postgres %s: update: claim %s on %s does not stand: %w", l.s.hosts, p.ID, p.Name, driver.ErrGone)
	}
	return err
}
