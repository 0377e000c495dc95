//go:build linux

package torture

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"
)

// actor is what a candidate does while it believes that it leads: it acts every 5 ms, and every few
// acts it writes to the register. It is the same for every kind of candidate, ours and the
// controls.
type actor struct {
	id     string
	acts   *os.File
	writes *os.File
	sink   string

	mu   sync.Mutex
	conn net.Conn
	seq  uint64
}

const (
	actsAWrite   = 4
	answerWithin = 2 * time.Second // then the outcome is unknown
)

func newActor(id, acts, writes, sink string) (*actor, error) {
	a, err := appendTo(acts)
	if err != nil {
		return nil, err
	}
	w, err := appendTo(writes)
	if err != nil {
		return nil, err
	}
	return &actor{id: id, acts: a, writes: w, sink: sink}, nil
}

// lead acts under the token until leads says no. An act counts at the instant read before the
// question. When lead returns, nothing acts any more: a write without an answer is given up, its
// outcome unknown.
func (a *actor) lead(token uint64, leads func() bool) error {
	wake := make(chan struct{}, 1)
	var writer sync.WaitGroup
	writer.Go(func() {
		for range wake {
			if leads() {
				a.write(token)
			}
		}
	})
	defer a.giveUp() // for good
	defer writer.Wait()
	defer a.giveUp()
	defer close(wake)
	tick := time.NewTicker(actEvery)
	defer tick.Stop()
	for n := 0; ; n++ {
		at := trueNow()
		if !leads() {
			return nil
		}
		// One write, one line: a process that is killed leaves whole lines.
		if _, err := fmt.Fprintf(a.acts, "%d %d %s\n", at.Nanoseconds(), token, a.id); err != nil {
			return err
		}
		if n%actsAWrite == 0 {
			select {
			case wake <- struct{}{}:
			default: // the one before has no answer yet
			}
		}
		<-tick.C
	}
}

// write sends one write to the register and records what came of it.
func (a *actor) write(token uint64) {
	a.mu.Lock()
	a.seq++
	seq, conn := a.seq, a.conn
	a.mu.Unlock()
	call := trueNow()
	outcome := "unknown"
	conn, answer, err := a.ask(conn, fmt.Sprintf("%d %s %d %d\n", token, a.id, seq, call.Nanoseconds()))
	if err == nil {
		outcome = answer
	} else if conn != nil {
		conn.Close()
		conn = nil
	}
	a.mu.Lock()
	a.conn = conn
	a.mu.Unlock()
	fmt.Fprintf(a.writes, "%d %d %d %s %d %s\n", call.Nanoseconds(), trueNow().Nanoseconds(), token, a.id, seq,
		outcome)
}

// ask sends a line and returns the first word of the answer.
func (a *actor) ask(conn net.Conn, line string) (net.Conn, string, error) {
	if conn == nil {
		var err error
		if conn, err = net.DialTimeout("unix", a.sink, answerWithin); err != nil {
			return nil, "", err
		}
		a.mu.Lock()
		a.conn = conn
		a.mu.Unlock()
	}
	if err := conn.SetDeadline(time.Now().Add(answerWithin)); err != nil {
		return conn, "", err
	}
	if _, err := conn.Write([]byte(line)); err != nil {
		return conn, "", err
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return conn, "", err
	}
	word, _, _ := strings.Cut(strings.TrimSpace(answer), " ")
	return conn, word, nil
}

// giveUp ends a write that is under way.
func (a *actor) giveUp() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.conn != nil {
		a.conn.Close()
		a.conn = nil
	}
}
