package pgstore

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/primacy-go/primacy/driver"
)

var (
	_ driver.Exchanger  = (*lease)(nil)
	_ driver.Transferer = (*lease)(nil)
)

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

// Transfer implements [driver.Transferer].
func (l *lease) Transfer(ctx context.Context, p driver.Place, heir uint64) error {
	if err := fit(p.Name, p.Seat, p.ID); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if heir > 1<<63-1 {
		heir = 0 // which nobody has
	}
	l.mu.Lock()
	if l.isOver {
		l.mu.Unlock()
		return driver.ErrGone
	}
	if st := l.stands[seat{p.Name, p.Seat}]; st != nil && st.place.ID == p.ID {
		st.leaving = true
	}
	l.mu.Unlock()
	journal, key, value := recordOf(p)
	code := ""
	err := l.s.patiently(ctx, "transfer", "SELECT {S}.transfer($1::text, $2::text, $3::text, $4::text, $5::bigint, $6::bigint, $7::boolean, $8::bytea, $9::text, $10::bytea)",
		[]any{l.id, p.Name, p.Seat, p.ID, int64(p.Token), int64(heir), true, journal, key, value}, func(r pgx.Rows) error { return r.Scan(&code) })
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if code == "ok" {
		l.released(p)
		return nil
	}
	if st := l.stands[seat{p.Name, p.Seat}]; st != nil && st.place.ID == p.ID {
		st.leaving = false
		l.due[st] = true // what became of it while its end would have been no news
		l.wakeLooker()
	}
	switch code {
	case "noheir":
		return fmt.Errorf("%s: token %d: %w", p.Name, heir, driver.ErrNoSuccessor)
	case "own":
		return fmt.Errorf("%s: the heir's claim is of the same lease: %w", p.Name, driver.ErrRefused)
	case "refused":
		return fmt.Errorf("%s under token %d is not held alone: %w", p.Name, p.Token, driver.ErrRefused)
	}
	return fmt.Errorf("postgres %s: transfer: claim %s on %s does not stand: %w", l.s.hosts, p.ID, p.Name, driver.ErrGone)
}
