package cron

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Lines passes the output of many commands on, each line whole and behind a prefix. The zero value
// works. It waits for who reads it as long as a command runs, and no longer: a run that has ended
// must be told, and a claim given up, though nobody reads.
type Lines struct {
	mu      sync.Mutex   // held while a line is written
	stalled atomic.Bool  // a command has ended whose last lines could not be written in time
	lost    atomic.Int64 // lines that were dropped since
}

// linesLimit is how long the last output of a command that has ended is waited for.
const linesLimit = time.Second

// PassOn returns a pipe to each writer. Wait closes them. It returns when all was passed on, and no
// later than after a second: what cannot be written by then may be lost.
func (l *Lines) PassOn(prefix string, to ...io.Writer) (pipes []*os.File, wait func(), err error) {
	var ins []*os.File
	var copied sync.WaitGroup
	closeAll := func(files []*os.File) {
		for _, f := range files {
			_ = f.Close()
		}
	}
	for _, to := range to {
		in, w, err := os.Pipe()
		if err != nil {
			closeAll(pipes) // their copies end
			return nil, nil, err
		}
		pipes, ins = append(pipes, w), append(ins, in)
		copied.Go(func() {
			defer in.Close()
			l.copy(to, in, prefix)
		})
	}
	return pipes, func() {
		closeAll(pipes)
		done := make(chan struct{})
		go func() { copied.Wait(); close(done) }()
		limit := time.NewTimer(linesLimit)
		defer limit.Stop()
		select {
		case <-done:
		case <-limit.C:
			l.stalled.Store(true)
			closeAll(ins)
		}
	}, nil
}

// copy passes lines on until from ends. Once the output has stalled it drops those that it would
// have to wait for: else each command that ends would leave one behind that waits.
func (l *Lines) copy(to io.Writer, from io.Reader, prefix string) {
	lines := bufio.NewReaderSize(from, 64<<10)
	for {
		line, err := lines.ReadSlice('\n')
		if len(line) > 0 {
			text := prefix + string(line)
			if line[len(line)-1] != '\n' {
				text += "\n"
			}
			l.write(to, prefix, text)
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

func (l *Lines) write(to io.Writer, prefix, text string) {
	if l.stalled.Load() {
		if !l.mu.TryLock() {
			l.lost.Add(1)
			return
		}
	} else {
		l.mu.Lock()
	}
	defer l.mu.Unlock()
	_, _ = io.WriteString(to, text)
	if l.stalled.Swap(false) {
		if n := l.lost.Swap(0); n > 0 {
			_, _ = fmt.Fprintf(to, "%s(%d lines were lost: nobody read them)\n", prefix, n)
		}
	}
}
