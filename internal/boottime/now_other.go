//go:build !linux && !darwin

package boottime

import "time"

var start = time.Now()

// Now returns a clock that stops in suspend: [Reliable] is false here and NewSession refuses.
func Now() time.Duration { return time.Since(start) }

// Reliable says whether Now counts suspended time.
const Reliable = false
