package main

import "syscall"

// nodeAttr lets a node of the demo end with it, also where the demo is killed.
func nodeAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}

// droppedAttr lets a process run as that user, and end with this one.
func droppedAttr(as *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: as, Pdeathsig: syscall.SIGTERM}
}
