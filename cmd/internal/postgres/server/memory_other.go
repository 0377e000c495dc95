//go:build !linux

package server

import (
	"errors"
	"os"
)

func memoryFile() (*os.File, error) { return nil, errors.ErrUnsupported }
