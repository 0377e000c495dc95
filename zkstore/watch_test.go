package zkstore

import (
	"context"
	"testing"
)

// Who waits looks again every few seconds, at a watch that may be there for months.
func TestWhoHasStoppedWaitingIsNotCalled(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	w := &watch{fired: make(chan struct{})}
	for range 100 {
		_ = anyOf(ended, nil, w)
	}
	if len(w.calls) != 0 {
		t.Errorf("%d are called by a watch that nobody waits for", len(w.calls))
	}
	called := 0
	off := w.on(func(bool) { called++ })
	w.on(func(bool) { called++ })
	off()
	w.fire(true)
	off()
	if w.on(func(bool) { called++ }); called != 2 {
		t.Errorf("%d were called, want two", called)
	}
}
