package registerstore

import (
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// Description says what a value of the adapter means, for people: a register may show it beside the
// value, where the storage has fields for it. Nothing may decide by it.
type Description struct {
	Kind string // "line", "lease" or "journal"

	Line driver.Line // of a line: who stands in it

	Owner string        // of a lease: whose it is
	TTL   time.Duration // its ttl
	Over  bool          // it has ended
}

// Describe returns what the value under a key means. The key is without [Options.Prefix].
func Describe(key string, value []byte) (Description, error) {
	kind, part, _ := strings.Cut(key, ".")
	switch d := (Description{Kind: kind}); kind + "." {
	case lines:
		var doc document
		if err := json.Unmarshal(value, &doc); err != nil {
			return d, err
		}
		d.Line = doc.show()
		return d, nil
	case leases:
		st, err := parseLease(part, value, "read")
		d.Owner, d.TTL, d.Over = string(st.Owner), time.Duration(st.TTL), st.Over
		return d, err
	case journals:
		return d, nil
	}
	return Description{}, errors.New("no key of a register store: " + key)
}
