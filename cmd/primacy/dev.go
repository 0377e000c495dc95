package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/primacy-go/primacy/cmd/internal/embedded"
)

func (a *app) devCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "dev [--] [COMMAND...]",
		Short: "Run a store on this machine, for trying things out",
		Long: `Run the embedded store in the foreground and print the PRIMACY_STORE that others on this machine use. With COMMAND: run it with
PRIMACY_STORE set, and stop the store when it ends.`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.dev(cmd.Context(), args) },
	}
	c.Flags().SetInterspersed(false)
	return c
}

func (a *app) dev(ctx context.Context, args []string) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	dir, err := a.embeddedDir()
	if err != nil {
		return err
	}
	openCtx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	node, err := embedded.Open(openCtx, dir, embedded.Options{Logger: a.logger()})
	if err != nil && ctx.Err() != nil {
		return nil // stopped by a signal while it waited for the store
	}
	if err != nil {
		return &exitError{exitUnreachable, err}
	}
	defer node.Close()
	store := embeddedScheme + dir
	if len(args) > 0 {
		return a.devCommandRun(ctx, store, args)
	}
	fmt.Fprintf(a.stdout, "PRIMACY_STORE=%s\n", store)
	a.say("the store runs in this process; others on this machine: export the line above. Stop with ^C.")
	<-ctx.Done()
	return nil
}

// devCommandRun runs args as a plain child that gets SIGTERM when we are asked to stop.
func (a *app) devCommandRun(ctx context.Context, store string, args []string) error {
	c := exec.CommandContext(ctx, args[0], args[1:]...)
	c.Stdin, c.Stdout, c.Stderr = a.stdin, a.stdout, a.stderr
	c.Env = append(os.Environ(), "PRIMACY_STORE="+store)
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.WaitDelay = 5 * time.Second
	err := c.Run()
	var exit *exec.ExitError
	switch {
	case c.ProcessState != nil && c.ProcessState.Success():
		return nil // also when it was asked to stop: err is the context's then
	case errors.As(err, &exit):
		if s := exit.Sys().(syscall.WaitStatus); s.Signaled() {
			return &exitError{code: 128 + int(s.Signal())}
		}
		return &exitError{code: exit.ExitCode()}
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, os.ErrNotExist):
		return fail(127, "command %q was not found", args[0])
	case errors.Is(err, os.ErrPermission):
		return fail(126, "command %q is not executable", args[0])
	}
	return err
}
