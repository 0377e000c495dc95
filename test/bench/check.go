package main

import (
	"context"
	"errors"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What it costs to ask whether one leads: row 21.

const asks = 500_000

func checkBenches() []*Bench {
	return []*Bench{{Name: "Check", Run: check, Floor: bareCheck, Lines: []Line{
		{Row: 21, Key: "each", What: "Check (the peer's: a look at a channel, which may be late)", Unit: Seconds, Goal: Goal{Most: 400e-9}},
		{Row: 21, Key: "allocations", What: "… allocations", Unit: Count, Goal: Goal{Text: "0", Most: 0.001}}}}}
}

// bareCheck is the system call alone that reads the clock of every deadline: what each Check needs
// where the C library's way around it cannot be had.
func bareCheck(context.Context, *Env, *Contender) (Sample, error) {
	var now unix.Timespec
	begin := time.Now()
	for range asks {
		_, _, errno := unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_BOOTTIME, uintptr(unsafe.Pointer(&now)), 0)
		if errno != 0 {
			return nil, errno
		}
	}
	return Sample{"each": value(time.Since(begin).Seconds() / asks)}, nil
}

func check(ctx context.Context, e *Env, c *Contender) (Sample, error) {
	t, err := e.team(ctx, c, 1, 1, lease)
	if err != nil {
		return nil, err
	}
	defer t.close()
	h, err := t.sessions[0].Campaign(ctx, e.Name("check"))
	if err != nil {
		return nil, err
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	begin := time.Now()
	for range asks {
		if h.Check() != nil {
			return nil, errors.New("lost while nothing happened")
		}
	}
	took := time.Since(begin)
	runtime.ReadMemStats(&after)
	// What else runs in the process (a heartbeat) allocates a little: far less than one for each
	// ask.
	return Sample{"each": value(took.Seconds() / asks), "allocations": value(float64(after.Mallocs-before.Mallocs) / asks)}, h.Release(ctx)
}
