package server

import (
	"os"

	"golang.org/x/sys/unix"
)

// memoryFile returns an empty file that has no name: nobody else finds it, and no disk need have
// room for it.
func memoryFile() (*os.File, error) {
	fd, err := unix.MemfdCreate("parameters", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), "parameters"), nil
}
