//go:build !linux

package pgdemo

import (
	"context"
	"errors"
	"time"
)

// Adopt says that this works on Linux only.
func Adopt() error { return errors.New("it needs Linux: what runs is seen in /proc") }

// Reap does nothing here.
func Reap(func(pid int) bool) {}

// Tree is a process and all below it.
type Tree struct{}

// TreeOf returns the tree of a process.
func TreeOf(int) Tree { return Tree{} }

// Freeze does nothing here.
func (Tree) Freeze() int { return 0 }

// Hold does nothing here.
func (Tree) Hold(context.Context) {}

// Thaw does nothing here.
func (Tree) Thaw() int { return 0 }

// Kill does nothing here.
func (Tree) Kill() int { return 0 }

// Sweep does nothing here.
func Sweep(time.Duration, *Memory) bool { return true }

// Memory knows the shared memory of servers.
type Memory struct{}

// NewMemory returns one that knows nothing.
func NewMemory() *Memory { return &Memory{} }

// Note does nothing here.
func (*Memory) Note(string) {}
