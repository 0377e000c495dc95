//go:build !linux

package main

import "syscall"

// nodeAttr is that of a node of the demo.
func nodeAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// droppedAttr lets a process run as that user.
func droppedAttr(as *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: as}
}
