package redistest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// start runs the process.
func (s *Server) start() error {
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(s.bin, s.args...)
	cmd.Args[0] = s.name
	cmd.Stdout, cmd.Stderr = log, log
	dieWithUs(cmd)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start redis: %w", err)
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	s.mu.Lock()
	s.cmd, s.exited = cmd, exited
	s.mu.Unlock()
	return nil
}

// Stop freezes the process (SIGSTOP). Its connections stay open and silent.
func (s *Server) Stop() {
	s.tb.Helper()
	if err := freeze(s.process()); err != nil {
		s.tb.Fatalf("redistest: stop: %v", err)
	}
}

// Cont lets a frozen process go on. On one that runs or has ended it does nothing.
func (s *Server) Cont() {
	if p := s.process(); p != nil {
		_ = thaw(p)
	}
}

// process returns the process, nil before it was started.
func (s *Server) process() *os.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return nil
	}
	return s.cmd.Process
}
