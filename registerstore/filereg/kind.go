package filereg

import (
	"fmt"

	"github.com/primacy-go/primacy/driver"
)

// kind is what a file system cannot promise.
type kind struct {
	warning string
	forgets bool // a reboot empties it
}

func shared(what string) error {
	return fmt.Errorf("filereg: the directory lies on %s, which other machines can share and whose reads come from a cache: %w", what, driver.ErrRefused)
}
