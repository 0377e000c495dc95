package zkstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// explore finds out what the servers can do, and fills the caps.
func (s *Store) explore(ctx context.Context) error {
	for round := 0; ; round++ {
		refused := 0
		var last error
		for _, addr := range s.config.Servers {
			err := s.exploreAt(ctx, addr)
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
		if refused == len(s.config.Servers) {
			return fmt.Errorf("ZooKeeper at %s: %w", s.where(), last)
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("ZooKeeper at %s does not answer (%v): %w", s.where(), last, ctx.Err())
		}
	}
}

// exploreAt asks one server.
func (s *Store) exploreAt(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*handshakes)
	defer cancel()
	least, err := s.negotiate(ctx, addr, time.Millisecond)
	if err != nil {
		return err
	}
	longest, err := s.negotiate(ctx, addr, 24*24*time.Hour)
	if err != nil {
		return err
	}
	s.tick = max(least/2, longest/20)
	if text, err := s.ask(ctx, addr, "conf"); err == nil {
		if m := tickLine.FindStringSubmatch(text); m != nil {
			ms, _ := strconv.Atoi(m[1])
			s.tick = time.Duration(ms) * time.Millisecond
		}
	}
	if s.config.Tick > 0 {
		s.tick = s.config.Tick
	}
	s.longest = longest
	version := "ZooKeeper"
	if text, err := s.ask(ctx, addr, "srvr"); err == nil {
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
		return fmt.Errorf("ZooKeeper at %s keeps sessions of %v to %v, too short for a tick of %v: %w", addr, least, longest, s.tick, driver.ErrRefused)
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
		Shared:        true,
		AtomicBatch:   true,
		Linearizable:  true,
		MinTTL:        max(ttlWithin(max(least, 2*tick), tick), gap(tick)),
		MaxTTL:        ttlWithin(longest, tick),
	}
}

// negotiate asks a server for a session with that timeout and returns the one that it would have. The session is left to end.
func (s *Store) negotiate(ctx context.Context, addr string, timeout time.Duration) (time.Duration, error) {
	c, err := s.connect(ctx, addr)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	end, _ := ctx.Deadline()
	_ = c.SetDeadline(end)
	request := make([]byte, 4+4+8+4+8+4+16)
	binary.BigEndian.PutUint32(request, uint32(len(request)-4))
	binary.BigEndian.PutUint32(request[16:], uint32(timeout.Milliseconds()))
	binary.BigEndian.PutUint32(request[28:], 16) // of the password, which is empty
	if _, err := c.Write(request); err != nil {
		return 0, err
	}
	head := make([]byte, 20)
	if _, err := io.ReadFull(c, head); err != nil {
		return 0, fmt.Errorf("it closed the connection (it may have no quorum): %w", err)
	}
	if strange(head) {
		return 0, fmt.Errorf("ZooKeeper at %s: %w: %w", addr, errStrange, driver.ErrRefused)
	}
	sid, got, _ := answered(head)
	if sid == 0 || got <= 0 {
		return 0, errors.New("it gave no session")
	}
	// Not to leave the session behind: a request to close it, which has a header and nothing else.
	bye := []byte{0, 0, 0, 8, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xf5}
	if _, err := c.Write(bye); err == nil {
		_, _ = io.Copy(io.Discard, io.LimitReader(c, 1024))
	}
	return got, nil
}

// ask sends one of the servers' commands of four letters.
func (s *Store) ask(ctx context.Context, addr, word string) (string, error) {
	c, err := s.connect(ctx, addr)
	if err != nil {
		return "", err
	}
	defer c.Close()
	end := time.Now().Add(handshakes)
	if d, ok := ctx.Deadline(); ok && d.Before(end) {
		end = d
	}
	_ = c.SetDeadline(end)
	if _, err := io.WriteString(c, word); err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(c, 1<<20))
	return string(text), err
}
