package boottime

import (
	"time"

	"golang.org/x/sys/unix"
)

// Reliable says whether Now counts suspended time.
const Reliable = true

// Now returns darwin's CLOCK_MONOTONIC, which counts sleep.
func Now() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic("primacy: this system has no CLOCK_MONOTONIC")
	}
	return time.Duration(ts.Nano())
}
