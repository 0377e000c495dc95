package registerstore

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// Kinds of keys.
const (
	lines    = "line."
	leases   = "lease."
	journals = "journal."
)

// longest is how many bytes of an escaped name stand in a key; what is longer ends with a hash.
const longest = 120

// escape writes a name with lower-case letters, digits and "-" only: everything else is "-" and two
// hexadecimal digits.
func escape(name string) string {
	const hexDigits = "0123456789abcdef"
	var b strings.Builder
	for i := range len(name) {
		if c := name[i]; c >= 'a' && c <= 'z' || c >= '0' && c <= '9' {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'-', hexDigits[c>>4], hexDigits[c&15]})
		}
	}
	return b.String()
}

// keyPart returns what stands for a name in a key. Names that differ have parts that differ: no
// byte is escaped as "-x".
func keyPart(name string) string {
	s := escape(name)
	if len(s) <= longest {
		return s
	}
	sum := sha256.Sum256([]byte(name))
	return s[:longest] + "-x" + hex.EncodeToString(sum[:20])
}

// prefixPart returns what the parts of all names with that prefix begin with.
func prefixPart(prefix string) string {
	s := escape(prefix)
	return s[:min(len(s), longest)]
}

// isLeaseID says whether id can be the ID of a lease: it becomes part of a key.
func isLeaseID(id string) bool {
	return len(id) == 26 && strings.Trim(id, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

// newID returns an ID that was never used.
func newID() string { return strings.ToLower(rand.Text()) }
