// Package near finds the word that was probably meant by a misspelt one.
package near

import "strings"

// Word returns the name that was probably meant, "" if none is near.
func Word(key string, names []string) string {
	best, least := "", 1+min(3, len(key)/2)
	for _, name := range names {
		if d := distance(fold(key), fold(name)); d < least {
			best, least = name, d
		}
	}
	return best
}

func fold(s string) string { return strings.ReplaceAll(strings.ToLower(s), "_", "-") }

// distance is how many letters must be changed, put in or left out to make b of a. Both are short:
// the table is small.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 64
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := before
			if a[i] != b[j] {
				cost = 1 + min(before, row[j], row[j+1])
			}
			before, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}
