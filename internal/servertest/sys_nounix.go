//go:build !unix

package servertest

import (
	"errors"
	"os"
)

func freeze(*os.Process) error { return errors.New("needs a Unix system") }
func thaw(*os.Process) error   { return errors.New("needs a Unix system") }

func lockFile(string) (func(), error) { return nil, errors.New("needs a Unix system") }
