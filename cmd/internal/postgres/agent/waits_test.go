package agent

import (
	"testing"
	"time"
)

func TestTheLongestCommitThatWaits(t *testing.T) {
	var w waits
	for i, c := range []struct {
		now     time.Duration
		waiting []string
		want    time.Duration
	}{
		{10, nil, 0},
		{20, []string{"1 a"}, 0},
		{30, []string{"1 a", "2 b"}, 10},
		{40, []string{"2 b"}, 10},
		{50, []string{"2 c"}, 0}, // the next commit of the same process
		{60, nil, 0},
		{70, []string{"2 c"}, 0},
	} {
		if got := w.longest(c.now, c.waiting); got != c.want {
			t.Errorf("look %d: %v, want %v", i, got, c.want)
		}
	}
}
