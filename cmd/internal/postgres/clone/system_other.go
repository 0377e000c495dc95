//go:build !linux

package clone

import (
	"errors"
	"syscall"
)

var errLinux = errors.New("it needs Linux")

func identify(string) (identity, error)   { return identity{}, errLinux }
func filesystemOf(string) (string, error) { return "", errLinux }
func ownGroup() *syscall.SysProcAttr      { return nil }
func awaitExit(int)                       {}
