//go:build !linux

package pgtest

import (
	"errors"
	"os/exec"
	"testing"
)

var errLinux = errors.New("pgtest: needs Linux")

type owner struct{}

func notRoot(tb testing.TB) owner {
	tb.Helper()
	missing(tb, errLinux.Error())
	return owner{}
}

func ordinary() (owner, error) { return owner{}, errLinux }

func (owner) own(string) error { return errLinux }
func (owner) wear(*exec.Cmd)   {}

// Launch starts a server that has ended.
func (s *Server) Launch() error { return errLinux }

func (s *Server) attach(*exec.Cmd) error { return errLinux }

func attach(*exec.Cmd) error { return errLinux }

// Kill ends the server.
func (s *Server) Kill() {}

// Stop freezes the server.
func (s *Server) Stop() {}

// Cont lets it go on.
func (s *Server) Cont() {}
