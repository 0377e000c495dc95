//go:build !unix

package etcdtest

import (
	"errors"
	"os"
	"os/exec"
)

var errUnix = errors.New("etcdtest: needs a Unix system")

func lockFile(string) (func(), error) { return nil, errUnix }
func freeze(*os.Process) error        { return errUnix }
func thaw(*os.Process) error          { return errUnix }
func dieWithUs(*exec.Cmd)             {}
