//go:build !unix

package redistest

import (
	"errors"
	"os"
)

func freeze(*os.Process) error { return errors.New("redistest: needs a Unix system") }
func thaw(*os.Process) error   { return errors.New("redistest: needs a Unix system") }
