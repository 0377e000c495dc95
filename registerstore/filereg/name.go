package filereg

import (
	"fmt"
	"strings"

	"github.com/primacy-go/primacy/driver"
)

const (
	mark    = "=" // begins the name of each key's file: so no key is "", ".", ".." or unfinished
	longest = 255 // bytes in a file name, on every file system worth the name
	plain   = "abcdefghijklmnopqrstuvwxyz0123456789-."
)

// fileName returns the name of key's file. Capital letters are escaped too: on macOS "a" and "A" are one file.
func fileName(key string) (string, error) {
	var b strings.Builder
	b.WriteString(mark)
	for i := range len(key) {
		if strings.IndexByte(plain, key[i]) >= 0 {
			b.WriteByte(key[i])
		} else {
			fmt.Fprintf(&b, "%%%02X", key[i])
		}
	}
	if b.Len() > longest {
		return "", fmt.Errorf("filereg: a key of %d bytes is too long for a file name: %w", len(key), driver.ErrRefused)
	}
	return b.String(), nil
}

// keyOf returns the key whose file has that name, and false for what is no key's file.
func keyOf(name string) (string, bool) {
	rest, ok := strings.CutPrefix(name, mark)
	if !ok {
		return "", false
	}
	var key []byte
	for len(rest) > 0 {
		c, n := rest[0], 1
		if c == '%' {
			if _, err := fmt.Sscanf(rest, "%%%02X", &c); err != nil {
				return "", false
			}
			n = min(3, len(rest))
		}
		key, rest = append(key, c), rest[n:]
	}
	if again, err := fileName(string(key)); err != nil || again != name { // "%61" would be a second name of "a"
		return "", false
	}
	return string(key), true
}
