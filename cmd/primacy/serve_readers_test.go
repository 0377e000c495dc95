//go:build linux

package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/servertest"
)

// requests returns how many calls the server has been sent, but for streams.
func requests(t *testing.T, server *etcdtest.Server) (n int) {
	t.Helper()
	for _, m := range server.Metrics(t) {
		if m.Name == "grpc_server_started_total" && m.Label("grpc_type") == "unary" {
			n += int(m.Value)
		}
	}
	return n
}

// crowd are readers of the events of one election.
type crowd struct {
	latest []atomic.Int64 // the newest value that each has read
	events atomic.Int64
	ended  atomic.Int64 // streams
}

// readers begins n readers of a name. They end with the test.
func (s *side) readers(n int, name string) *crowd {
	s.Helper()
	c := &crowd{latest: make([]atomic.Int64, n)}
	for i := range n {
		conn, err := net.Dial("unix", s.socket)
		if err != nil {
			s.Fatal(err)
		}
		s.Cleanup(func() { conn.Close() })
		fmt.Fprintf(conn, "GET /v1/elections/%s/events HTTP/1.1\r\nHost: x\r\n\r\n", name)
		go func() {
			defer c.ended.Add(1)
			in := bufio.NewReaderSize(conn, 16<<10)
			for {
				text, err := in.ReadSlice('\n')
				if err != nil && err != bufio.ErrBufferFull {
					return
				}
				_, value, there := strings.Cut(string(text), `"value":"`)
				if !there {
					continue
				}
				c.events.Add(1)
				number, _, _ := strings.Cut(value, ".")
				if v, err := strconv.ParseInt(number, 10, 64); err == nil {
					c.latest[i].Store(v)
				}
			}
		}()
	}
	return c
}

// behind returns how many have not read the value yet.
func (c *crowd) behind(v int64) (n int) {
	for i := range c.latest {
		if c.latest[i].Load() < v {
			n++
		}
	}
	return n
}

// busy begins n loops that compute. They end with the test.
func (w *world) busy(n int) {
	w.Helper()
	for range n {
		cmd := exec.Command("sh", "-c", "while kill -0 $PPID; do :; done") // they end with us, also if we are killed
		cmd.Dir = w.dir
		if err := cmd.Start(); err != nil {
			w.Fatal(err)
		}
		w.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	}
}

// TestServeManyReaders has many read the events of an election whose leader proclaims 4 kB again
// and again. What the store is asked does not grow with them, and the leader keeps its term.
//
// READERS=900 makes it long: ten runs, a TTL of 3 s, and four loops that compute (make readers).
func TestServeManyReaders(t *testing.T) {
	onlyInVerify(t)
	shared.start(t)
	readers, runs, changes, loops, ttl := 30, 1, 15, 0, "30s"
	if text := os.Getenv("READERS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			t.Fatalf("READERS=%q: give a number", text)
		}
		readers, runs, changes, loops, ttl = n, 10, 120, 4, "3s"
	}
	for run := range runs {
		t.Run(strconv.Itoa(run+1), func(t *testing.T) {
			server := etcdtest.Start(t, etcdtest.Options{})
			w := newWorldOn(t, server)
			s := w.serve("a", "--ttl", ttl, "--max-streams", strconv.Itoa(readers))
			leader := s.campaign("one")
			won := leader.next("elected")
			w.busy(loops)
			c := s.readers(readers, "a%2Fn")
			s.until(func() bool { return c.events.Load() >= int64(readers) }, "tells all the present state")
			before, began := requests(t, server), time.Now()
			value := strings.Repeat("x", 4000)
			for i := range changes {
				next := time.After(100 * time.Millisecond)
				code, text := s.ask("POST", "/v1/elections/a%2Fn/proclaim",
					fmt.Sprintf(`{"value":"%d.%s"}`, i+1, value), "Primacy-Token", won.Token)
				if code != 200 {
					t.Fatalf("change %d after %v: %d %s", i+1, time.Since(began), code, text)
				}
				<-next
			}
			s.until(func() bool { return c.behind(int64(changes)) == 0 }, "tells all the latest value")
			took := time.Since(began)
			asked := requests(t, server) - before
			t.Logf("%d readers, %d changes in %v: %d requests to the store, %d events read", readers, changes, took,
				asked, c.events.Load())
			// a change: the proclamation, and what one observer reads; beside it, renewals
			if most := 6*changes + 20*int(took/time.Second+1); asked > most {
				t.Errorf("%d requests to the store, more than %d", asked, most)
			}
			if c.ended.Load() > 0 {
				t.Errorf("%d streams have ended", c.ended.Load())
			}
			for len(leader.lines) > 0 {
				if l := <-leader.lines; l.Event != "renewed" {
					t.Errorf("the leader is told %+v", l)
				}
			}
		})
	}
}

// Anybody on the machine can open streams on a port of loopback; the owner of the socket still
// campaigns there.
func TestServeAFullPortLeavesTheSocketFree(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	addr := "127.0.0.1:" + servertest.FreePort(t)
	s := w.serve("a", "--listen", addr)
	const most = 1000 // the default of --max-streams
	open := make(chan string, most)
	for range most {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		fmt.Fprint(conn, "GET /v1/elections/idle/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
		go func() {
			status, _ := bufio.NewReader(conn).ReadString('\n')
			open <- status
		}()
	}
	for range most {
		if status := <-open; !strings.Contains(status, " 200 ") {
			t.Fatalf("a stream within the limit: %q", status)
		}
	}
	resp, err := http.Get("http://" + addr + "/v1/elections/idle/events")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 503 || !strings.Contains(string(text), "urn:primacy:too-many") ||
		!strings.Contains(string(text), "1000 event streams are open on "+addr) {
		t.Errorf("one too many: %d %s %v", resp.StatusCode, text, err)
	}
	s.campaign("owner").next("elected")
	if code, text := s.ask("POST", "/v1/locks/l", ""); code != 200 {
		t.Errorf("a lock on the socket: %d %s", code, text)
	}
}
