//go:build linux

package torture

import (
	"bufio"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/safety"
)

// sink is two registers behind one socket. Every write goes to both: one takes whatever comes, the
// other has a fence. Lines:
//
//	TOKEN ID SEQ BOOT_NS   answered "ok", or "stale LARGEST" by the fence
//	read                   answered with the largest token applied
type sink struct {
	path string
	ln   net.Listener

	mu  sync.Mutex
	log []safety.Stamp // what the fenced register has applied, in its order
	// what the unfenced one has taken though a larger token was there before: the fenced one
	// refused it
	late    []safety.Stamp
	called  map[safety.Stamp]time.Duration
	largest uint64
	holds   map[string]*heldWrite // by id
	reads   []read
}

// read is one look at the fenced register, by the harness.
type read struct {
	call, back time.Duration
	largest    uint64
}

// heldWrite keeps the next write of one candidate on its way.
type heldWrite struct {
	caught  chan struct{} // closed when a write is held
	release chan struct{}
	token   uint64 // of the write that is held
}

func newSink(t testing.TB, dir string) *sink {
	t.Helper()
	s := &sink{path: filepath.Join(dir, "sink"), called: map[safety.Stamp]time.Duration{},
		holds: map[string]*heldWrite{}}
	var err error
	if s.ln, err = net.Listen("unix", s.path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.ln.Close() })
	go func() {
		for {
			c, err := s.ln.Accept()
			if err != nil {
				return
			}
			go s.serve(c)
		}
	}()
	return s
}

func (s *sink) serve(c net.Conn) {
	defer c.Close()
	for lines := bufio.NewScanner(c); lines.Scan(); {
		if _, err := fmt.Fprintln(c, s.answer(lines.Text())); err != nil {
			return
		}
	}
}

func (s *sink) answer(line string) string {
	if line == "read" {
		s.mu.Lock()
		defer s.mu.Unlock()
		return fmt.Sprint(s.largest)
	}
	var w safety.Stamp
	var at int64
	if _, err := fmt.Sscanf(line, "%d %s %d %d", &w.Token, &w.Who, &w.Seq, &at); err != nil {
		return fmt.Sprintf("error %q: want token id seq boot_ns", line)
	}
	s.delay(w)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.called[w] = time.Duration(at)
	if w.Token < s.largest {
		s.late = append(s.late, w)
		return fmt.Sprint("stale ", s.largest)
	}
	s.largest = w.Token
	s.log = append(s.log, w)
	return "ok"
}

// delay keeps a write on its way for as long as somebody wants that.
func (s *sink) delay(w safety.Stamp) {
	s.mu.Lock()
	h := s.holds[w.Who]
	delete(s.holds, w.Who)
	if h != nil {
		h.token = w.Token
		close(h.caught)
	}
	s.mu.Unlock()
	if h != nil {
		<-h.release
	}
}

// hold has the next write of a candidate stay on its way until release.
func (s *sink) hold(id string) *heldWrite {
	h := &heldWrite{caught: make(chan struct{}), release: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holds[id] = h
	return h
}

// let ends hold.
func (s *sink) let(id string, h *heldWrite) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holds[id] == h {
		delete(s.holds, id)
	}
	close(h.release)
}

// watch reads the register now and then until the channel closes, as any client would.
func (s *sink) watch(t testing.TB, stop <-chan struct{}) {
	c, err := net.Dial("unix", s.path)
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	answers := bufio.NewReader(c)
	for {
		r := read{call: boottime.Now()}
		fmt.Fprintln(c, "read")
		if _, err := fmt.Fscan(answers, &r.largest); err != nil {
			t.Errorf("read of the register: %v", err)
			return
		}
		r.back = boottime.Now()
		s.mu.Lock()
		s.reads = append(s.reads, r)
		s.mu.Unlock()
		select {
		case <-stop:
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}
