//go:build !linux

package callbacks

import (
	"os"
	"syscall"
)

// KeeperArg is the first argument of a keeper.
const KeeperArg = "__callback"

func ownSession() *syscall.SysProcAttr { return nil }

// KeeperMain ends the process: a member needs Linux.
func KeeperMain() { os.Exit(125) }
