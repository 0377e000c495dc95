package drivertest

import (
	"io"

	"github.com/primacy-go/primacy/internal/safety"
)

// Interval says that Who acted as leader of Name under Token from From until just before To. All
// times are on one clock of one machine, such as the boot clock.
type Interval = safety.Interval

// Check returns nil if the history could be that of elections: for each name, intervals of
// different tokens do not overlap (one may begin when the other ends), tokens grow strictly in
// order of the beginnings, and each token has one owner. The error names the first two intervals
// that contradict each other.
func Check(all []Interval) error { return safety.Check(all) }

// ReadHistory reads what one or more workers wrote while they led name: a line "boot_ns token id"
// before each thing done as leader. It returns an interval from the first to the last sight of each
// token by each worker.
func ReadHistory(name string, records ...io.Reader) ([]Interval, error) {
	return safety.Read(name, records...)
}
