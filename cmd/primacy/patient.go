package main

import (
	"bytes"
	"io"
	"os"
	"sync"
	"time"
)

// patient passes on what is told to people, who may not listen: a terminal that is stopped (^S), a pipe that nobody reads. It waits for a moment and
// then drops what is told, or a leader would stop nothing, and give nothing up, until somebody has read about it.
type patient struct {
	mu    sync.Mutex
	next  chan message
	under chan struct{} // nil, or closed when what is under way since an earlier Write is written
}

type message struct {
	text []byte
	done chan struct{} // closed when it is written
}

// sayLimit is how long somebody who does not listen is waited for, once; then, until he has listened again, each time no longer than busyLimit.
const (
	sayLimit  = 200 * time.Millisecond
	busyLimit = 5 * time.Millisecond
)

func newPatient(w io.Writer) *patient {
	p := &patient{next: make(chan message)}
	go func() { // stays to the end of the process, as what it writes to does
		for m := range p.next {
			_, _ = w.Write(m.text)
			close(m.done)
		}
	}()
	return p
}

// Write returns when text is written, or dropped, or still under way after a moment.
func (p *patient) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := message{bytes.Clone(text), make(chan struct{})}
	limit := sayLimit
	select {
	case <-p.under:
		p.under = nil
	default:
		if p.under != nil {
			limit = busyLimit
		}
	}
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case p.next <- m:
	case <-t.C:
		return 0, os.ErrDeadlineExceeded
	}
	select {
	case <-m.done:
		p.under = nil
	case <-t.C:
		p.under = m.done
	}
	return len(text), nil
}
