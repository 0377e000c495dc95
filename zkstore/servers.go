package zkstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// servers are where ZooKeeper is, and how to connect there.
type servers struct {
	all []string
	tls *tls.Config
}

func (s servers) String() string { return strings.Join(s.all, ",") }

// handshakes is for how long at most a server may leave us without an answer to the first request.
const handshakes = 2 * time.Second

// connect opens a plain or TLS connection.
func (s servers) connect(ctx context.Context, addr string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil || s.tls == nil {
		return c, err
	}
	config := s.tls.Clone()
	if config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(addr)
	}
	t := tls.Client(c, config)
	if err := t.HandshakeContext(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return t, nil
}

// detect finds out what the servers can do, and fills the caps.
func (s *Store) detect(ctx context.Context) error {
	for {
		refused := 0
		var last error
		for _, addr := range s.servers.all {
			err := s.detectAt(ctx, addr)
			if err == nil || errors.Is(err, driver.ErrRefused) {
				return err
			}
			if refuses(err) {
				refused++
			}
			last = err
			if ctx.Err() != nil {
				break
			}
		}
		if refused == len(s.servers.all) {
			return fmt.Errorf("ZooKeeper at %s: %w", s.servers, last)
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("ZooKeeper at %s does not answer (%v): %w", s.servers, last, ctx.Err())
		}
	}
}

// refuses says that a server will not be there the next moment either: nothing listens, or nobody
// knows its name.
func refuses(err error) bool {
	var dns *net.DNSError
	return errors.Is(err, syscall.ECONNREFUSED) || errors.As(err, &dns) && dns.IsNotFound
}

// detectAt asks one server.
func (s *Store) detectAt(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*handshakes)
	defer cancel()
	least, err := s.servers.negotiate(ctx, addr, time.Millisecond)
	if err != nil {
		return err
	}
	longest, err := s.servers.negotiate(ctx, addr, 24*24*time.Hour)
	if err != nil {
		return err
	}
	s.tick, s.longest = max(least/2, longest/20), longest
	if text, err := s.servers.command(ctx, addr, "conf"); err == nil {
		if m := tickLine.FindStringSubmatch(text); m != nil {
			ms, _ := strconv.Atoi(m[1])
			s.tick = time.Duration(ms) * time.Millisecond
		}
	}
	if s.config.Tick > 0 {
		s.tick = s.config.Tick
	}
	version := "ZooKeeper"
	if text, err := s.servers.command(ctx, addr, "srvr"); err == nil {
		if m := versionLine.FindStringSubmatch(text); m != nil {
			version += " " + m[1]
			major, _ := strconv.Atoi(m[2])
			minor, _ := strconv.Atoi(m[3])
			if major < 3 || major == 3 && minor < 5 {
				return fmt.Errorf("%s at %s is older than 3.5: %w", version, addr, driver.ErrRefused)
			}
		}
	}
	s.caps = capsOf(version, s.tick, least, longest)
	if s.caps.MinTTL <= 0 || s.caps.MaxTTL < s.caps.MinTTL {
		return fmt.Errorf("ZooKeeper at %s keeps sessions of %v to %v, too short for a tick of %v: %w",
			addr, least, longest, s.tick, driver.ErrRefused)
	}
	return nil
}

var (
	tickLine    = regexp.MustCompile(`(?m)^tickTime=(\d{1,9})$`)
	versionLine = regexp.MustCompile(`Zookeeper version: ((\d+)\.(\d+)[0-9A-Za-z.]*)`)
)

func capsOf(version string, tick, least, longest time.Duration) driver.Caps {
	return driver.Caps{
		Store:         version,
		FIFO:          true,
		Token:         driver.TokenDurable,
		Push:          true,
		ExpiryPush:    true,
		SharedRenewal: true,
		ChainedRenew:  true,
		Shared:        true,
		AtomicBatch:   true,
		Linearizable:  true,
		MinTTL:        max(ttlWithin(max(least, 2*tick), tick), gap(tick)),
		MaxTTL:        ttlWithin(longest, tick),
	}
}

var errNoSession = errors.New("it gave no session")

// negotiate asks a server for a session with that timeout and returns the one that it would have.
// It asks the server to end the session, and does not wait for that.
func (s servers) negotiate(ctx context.Context, addr string, timeout time.Duration) (time.Duration, error) {
	c, err := s.connect(ctx, addr)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	end, _ := ctx.Deadline()
	_ = c.SetDeadline(end)
	got, err := session{timeout: timeout}.ask(c, 0)
	switch {
	case errors.Is(err, errStrange):
		return 0, fmt.Errorf("ZooKeeper at %s: %w: %w", addr, err, driver.ErrRefused)
	case err != nil:
		return 0, err
	case got.id == 0:
		return 0, errNoSession
	}
	if _, err := c.Write(op{code: opClose}.frame(1)); err == nil {
		_, _ = io.Copy(io.Discard, io.LimitReader(c, 1024))
	}
	return got.timeout, nil
}

// command sends one of the servers' commands of four letters.
func (s servers) command(ctx context.Context, addr, word string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakes)
	defer cancel()
	c, err := s.connect(ctx, addr)
	if err != nil {
		return "", err
	}
	defer c.Close()
	end, _ := ctx.Deadline()
	_ = c.SetDeadline(end)
	if _, err := io.WriteString(c, word); err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(c, 1<<20))
	return string(text), err
}

// withPort adds ZooKeeper's own port where there is none.
func withPort(server string) string {
	if _, _, err := net.SplitHostPort(server); err == nil {
		return server
	}
	return net.JoinHostPort(strings.Trim(server, "[]"), "2181")
}

// rotation tells where a session connects next: to each server in turn.
type rotation struct {
	all  []string
	stop <-chan struct{}

	mu    sync.Mutex
	at    int
	tries int              // since the last connection
	last  map[string]error // of each server, since the last connection
}

func newRotation(all []string, stop <-chan struct{}) *rotation {
	return &rotation{all: all, stop: stop, at: rand.IntN(len(all)), last: map[string]error{}}
}

// next returns the next server, after a pause if all were tried: again, then.
func (r *rotation) next() (server string, again bool) {
	r.mu.Lock()
	server = r.all[r.at%len(r.all)]
	r.at++
	rounds := r.tries / len(r.all)
	r.tries++
	r.mu.Unlock()
	if rounds > 0 {
		select {
		case <-time.After(min(time.Duration(rounds)*50*time.Millisecond, 500*time.Millisecond)):
		case <-r.stop:
		}
	}
	return server, rounds > 0
}

// found notes that a server gave the session.
func (r *rotation) found() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tries, r.last = 0, map[string]error{}
}

func (r *rotation) failed(addr string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last[addr] = err
}

// explain adds to err why no server could be reached.
func (r *rotation) explain(err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for addr, last := range r.last {
		return fmt.Errorf("no connection to ZooKeeper (%s: %v): %w", addr, last, err)
	}
	return err
}
