//go:build linux

package interop

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
)

// The environment of a command that acts under `etcdctl lock` or one of our verbs.
const (
	actsEnv   = "INTEROP_ACTS"   // the file all of them write
	idEnv     = "INTEROP_ID"     // whose turn it is
	socketEnv = "INTEROP_SOCKET" // where the test listens
)

const actEvery = 2 * time.Millisecond

// acts is the file in which everybody writes what he does while he holds the line.
type acts struct{ f *os.File }

func openActs(path string) (acts, error) {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	return acts{f}, err
}

// errLost says that a holder has learnt, before it was told to leave, that it holds no more.
var errLost = errors.New("the line was lost while it acted")

// act acts until told to leave, each 2 ms and once more at the end, or until valid says no. An act
// counts at the instant before it asked. Begun is called after the first act.
func (a acts) act(id string, token uint64, leave <-chan struct{}, valid func() bool, begun func()) error {
	tick := time.NewTicker(actEvery)
	defer tick.Stop()
	for n, last := 0, false; ; n++ {
		at := boottime.Now()
		if !valid() {
			return errLost
		}
		// One write, one line: appends of several processes do not mix.
		if _, err := fmt.Fprintf(a.f, "%d %d %s\n", at.Nanoseconds(), token, id); err != nil {
			return err
		}
		if n == 0 {
			begun()
		}
		if last {
			return nil
		}
		select {
		case <-leave:
			last = true
		case <-tick.C:
		}
	}
}

// actMain is the command. It tells the test what it holds (a key, or a token), hears the number to
// act under, acts until it is told to leave, and ends. If the test dies the connection ends, and so
// does this.
func actMain() error {
	conn, err := net.Dial("unix", os.Getenv(socketEnv))
	if err != nil {
		return err
	}
	defer conn.Close()
	what := cmp.Or(os.Getenv("PRIMACY_TOKEN"), os.Getenv("ETCD_LOCK_KEY"))
	if _, err := fmt.Fprintf(conn, "%s %s\n", os.Getenv(idEnv), what); err != nil {
		return err
	}
	in := bufio.NewReader(conn)
	line, err := in.ReadString('\n')
	if err != nil {
		return err
	}
	var token uint64
	if _, err := fmt.Sscan(line, &token); err != nil {
		return fmt.Errorf("%q is no token: %w", strings.TrimSpace(line), err)
	}
	a, err := openActs(os.Getenv(actsEnv))
	if err != nil {
		return err
	}
	leave := make(chan struct{})
	go func() {
		if _, err := in.ReadString('\n'); err != nil {
			os.Exit(98) // the test is gone
		}
		close(leave)
	}()
	always := func() bool { return true } // the program that started us answers for that, and kills us
	return a.act(os.Getenv(idEnv), token, leave, always, func() { fmt.Fprintln(conn, "acting") })
}
