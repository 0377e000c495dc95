package driver

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// What follows is for those who write a store: rules of the port that need no storage, so that each
// store has the same.

// CheckClaims returns an [ErrRefused] for claims of one call that could never be told apart later,
// or nil. A store asks it before anything else.
func CheckClaims(claims ...Claim) error {
	type seat struct{ name, seat string }
	seats, shared := map[seat]bool{}, map[string]int{}
	for _, c := range claims {
		at := seat{c.Name, c.Seat}
		if c.Name == "" || c.ID == "" || c.Slots < Unlimited || seats[at] {
			return fmt.Errorf("claim %q on %q needs a name and seat of its own, an ID, and a number of slots: %w", c.ID, c.Name, ErrRefused)
		}
		seats[at] = true
		if n := shared[c.Name]; c.Slots != 0 && n != 0 && n != c.Slots {
			return fmt.Errorf("claims on %q with %s and with %s: %w", c.Name, slotsText(n), slotsText(c.Slots), ErrRefused)
		} else if c.Slots != 0 {
			shared[c.Name] = c.Slots
		}
	}
	return nil
}

// CheckExchange returns an [ErrRefused] where p cannot be exchanged for c ([Exchanger]), or nil.
func CheckExchange(p Place, c Claim) error {
	if err := CheckClaims(c); err != nil {
		return err
	}
	if p.Name != c.Name || p.Seat == c.Seat || p.Slots != 0 || c.Slots != 0 || c.Try {
		return fmt.Errorf("%s: claim %s cannot be exchanged for %s: %w", c.Name, p.ID, c.ID, ErrRefused)
	}
	return nil
}

// CheckRecord returns an [ErrRefused] for a record that cannot be kept in the journal of that name,
// or nil.
func CheckRecord(journal string, r Record) error {
	ok := func(c rune) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("-.:+_", c)
	}
	odd := strings.IndexFunc(r.Key, func(c rune) bool { return !ok(c) })
	switch {
	case journal == "":
		return fmt.Errorf("a record %q of a journal without a name: %w", r.Key, ErrRefused)
	case r.Key == "" || len(r.Key) > 64 || odd >= 0:
		return fmt.Errorf("the record key %q of %s is not 1 to 64 letters, digits and -.:+_: %w", r.Key, journal, ErrRefused)
	case len(r.Value) > MaxRecord:
		return fmt.Errorf("the record %q of %s has %d bytes, more than %d: %w", r.Key, journal, len(r.Value), MaxRecord, ErrRefused)
	}
	return nil
}

// IsFinal says whether err is an answer of the store. Every other error, and nil, is not: it leaves
// the outcome unknown.
func IsFinal(err error) bool {
	return errors.Is(err, ErrGone) || errors.Is(err, ErrTaken) || errors.Is(err, ErrRefused) || errors.Is(err, ErrNoSuccessor)
}

// Misfit is the [ErrSlots] for a shared claim of name with want slots where those in its line
// have others.
func Misfit(name string, have, want int) error {
	return fmt.Errorf("%s is shared with %s, not %s: %w", name, slotsText(have), slotsText(want), ErrSlots)
}

func slotsText(n int) string {
	if n == Unlimited {
		return "any number of slots"
	}
	return fmt.Sprintf("%d slots", n)
}

// Free says whether a claim with so many slots holds when claims with these stand before it: an
// exclusive one only as the first, a shared one behind no exclusive one, and where its slots are
// counted only as one of the first so many.
func Free(slots int, before ...int) bool {
	if slots == 0 {
		return len(before) == 0
	}
	return !slices.Contains(before, 0) && (slots == Unlimited || len(before) < slots)
}
