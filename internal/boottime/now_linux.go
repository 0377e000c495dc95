package boottime

import (
	"time"

	"golang.org/x/sys/unix"
)

// Reliable says whether Now counts suspended time.
const Reliable = true

// Now returns CLOCK_BOOTTIME.
func Now() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("primacy: this kernel has no CLOCK_BOOTTIME (before Linux 2.6.39)")
	}
	return time.Duration(ts.Nano())
}
