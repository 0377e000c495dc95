//go:build !linux

package servertest

import "os/exec"

// dieWithUs does nothing: only Linux can do it. Tests still kill their servers when they end.
func dieWithUs(*exec.Cmd) {}
