//go:build linux

package main

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	actEvery   = 5 * time.Millisecond
	writeEvery = 4 // acts
	sinkLimit  = 2 * time.Second
)

// recorder writes down what a leader does, one line each:
//
//	acts file:   boot_ns token id
//	sink:        token id seq boot_ns, answered by "ok" or "stale LARGEST"
//	writes file: call_ns return_ns token id seq ok|stale|unknown
//
// The time of an act is read before the library is asked whether it leads: so a process that is
// frozen between the answer and the line is not blamed for a late act.
type recorder struct {
	id           string
	acts, writes *os.File
	socket       string
	seq          uint64

	mu   sync.Mutex
	conn net.Conn // nil: not connected
}

func openRecorder(id, acts, writes, socket string) (*recorder, error) {
	a, err := appendTo(acts)
	if err != nil {
		return nil, err
	}
	w, err := appendTo(writes)
	if err != nil {
		return nil, err
	}
	// Milliseconds since boot: a process that is started anew with the same id, and with client-go
	// under the same token, counts on above every number used before, as it writes less than once a
	// millisecond.
	seq := uint64(bootTime() / 1e6)
	return &recorder{id: id, acts: a, writes: w, socket: socket, seq: seq}, nil
}

func appendTo(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
}

// bootTime returns CLOCK_BOOTTIME in nanoseconds: one clock for all processes of a machine.
func bootTime() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		log.Fatalf("CLOCK_BOOTTIME: %v", err)
	}
	return ts.Nano()
}

// lead acts under token until leads says no or ctx ends. When it returns nothing acts any more: a
// write without an answer is given up, its outcome unknown.
func (r *recorder) lead(ctx context.Context, token uint64, leads func() bool) {
	log.Printf("leads, token %d", token)
	due := make(chan struct{}, 1)
	var writer sync.WaitGroup
	writer.Go(func() {
		for range due {
			if ctx.Err() == nil && leads() {
				r.write(token)
			}
		}
	})
	n := r.act(ctx, token, leads, due)
	close(due)
	r.giveUp()
	writer.Wait()
	log.Printf("led no more, token %d, %d acts", token, n)
}

// act records an act every few milliseconds, says now and then that a write is due, and returns how
// many acts it were.
func (r *recorder) act(ctx context.Context, token uint64, leads func() bool, due chan<- struct{}) int {
	tick := time.NewTicker(actEvery)
	defer tick.Stop()
	for n := 0; ; n++ {
		now := bootTime()
		if ctx.Err() != nil || !leads() {
			return n
		}
		put(r.acts, fmt.Sprintf("%d %d %s\n", now, token, r.id))
		if n%writeEvery == 0 {
			select {
			case due <- struct{}{}:
			default: // the one before has no answer yet
			}
		}
		<-tick.C
	}
}

// put writes the line in one call, so that lines of several processes do not mix.
func put(f *os.File, line string) {
	if _, err := f.WriteString(line); err != nil {
		log.Fatal(err)
	}
}

// write sends one write to the sink and records what became of it.
func (r *recorder) write(token uint64) {
	r.seq++
	call := bootTime()
	outcome, err := r.ask(fmt.Sprintf("%d %s %d %d\n", token, r.id, r.seq, call))
	if err != nil {
		// A late reply would be taken for that of the next write.
		r.giveUp()
		outcome = "unknown"
	}
	put(r.writes, fmt.Sprintf("%d %d %d %s %d %s\n", call, bootTime(), token, r.id, r.seq, outcome))
}

func (r *recorder) ask(line string) (string, error) {
	conn, err := r.connect()
	if err != nil {
		return "", err
	}
	if err := conn.SetDeadline(time.Now().Add(sinkLimit)); err != nil {
		return "", err
	}
	if _, err := conn.Write([]byte(line)); err != nil {
		return "", err
	}
	reply, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return "", err
	}
	switch word, _, _ := strings.Cut(strings.TrimSpace(reply), " "); word {
	case "ok", "stale":
		return word, nil
	}
	return "", fmt.Errorf("the sink says %q", reply)
}

// connect returns the connection to the sink, a new one if the last was given up.
func (r *recorder) connect() (net.Conn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.conn == nil {
		conn, err := net.DialTimeout("unix", r.socket, sinkLimit)
		if err != nil {
			return nil, err
		}
		r.conn = conn
	}
	return r.conn, nil
}

// giveUp closes the connection to the sink, which ends a write that waits for its answer.
func (r *recorder) giveUp() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.conn != nil {
		r.conn.Close()
		r.conn = nil
	}
}
