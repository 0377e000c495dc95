package main

import "syscall"

// nodeAttr lets a node of the demo end with it, also where the demo is killed.
func nodeAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
