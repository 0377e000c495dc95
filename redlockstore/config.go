package redlockstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// Config says where the servers are. Only Addrs is required. All who stand for the same names must
// have the same Addrs, DB, Prefix, Plain, MaxTTL and Guard.
type Config struct {
	Addrs    []string // host:port of each server; they know nothing of each other. An odd number is best
	Username string
	Password string
	DB       int
	TLS      *tls.Config
	Prefix   string // of our keys. Default "primacy"
	Plain    bool   // the names are the keys, verbatim, as redsync and redislock use them

	// MaxTTL is the largest ttl of a lease that anybody may have. Default 30 s.
	MaxTTL time.Duration
	// Guard is for how long after its start a server does not count: it may have come back without
	// keys that somebody still relies on. Default MaxTTL and a tenth. Below 0 it is off, for
	// servers none of which ever loses a write that it has acknowledged (appendfsync always, on
	// all).
	Guard time.Duration
}

// Bounds of a ttl.
const (
	minTTL     = 500 * time.Millisecond
	defaultTTL = 30 * time.Second
	mostTTL    = time.Hour
)

func (c Config) fill() (Config, error) {
	if c.Prefix == "" {
		c.Prefix = "primacy"
	}
	if c.MaxTTL == 0 {
		c.MaxTTL = defaultTTL
	}
	if c.Guard == 0 {
		c.Guard = c.MaxTTL + c.MaxTTL/10
	}
	for i, a := range c.Addrs {
		if i := strings.LastIndexByte(a, '@'); i >= 0 { // what is before it is a password
			return c, fmt.Errorf("redis quorum: the address of %q is not host:port: user and password are for all servers: %w", a[i+1:], driver.ErrRefused)
		}
		if _, _, err := net.SplitHostPort(a); err != nil {
			return c, fmt.Errorf("redis quorum: the address %q is not host:port: %w", a, driver.ErrRefused)
		}
		if slices.Contains(c.Addrs[:i], a) {
			return c, fmt.Errorf("redis quorum: the server %s is named twice, and would vote twice: %w", a, driver.ErrRefused)
		}
	}
	switch {
	case len(c.Addrs) == 0:
		return c, fmt.Errorf("redis quorum: no server is named: %w", driver.ErrRefused)
	case c.MaxTTL < minTTL || c.MaxTTL > mostTTL:
		return c, fmt.Errorf("redis quorum: the largest ttl %v is not between %v and %v: %w", c.MaxTTL, minTTL, mostTTL, driver.ErrRefused)
	case c.Guard > 0 && c.Guard < c.MaxTTL:
		return c, fmt.Errorf("redis quorum: guard %v is shorter than the largest ttl %v: %w", c.Guard, c.MaxTTL, driver.ErrRefused)
	}
	return c, nil
}

// Open returns a store over these servers, as soon as a majority has answered. Servers that do not
// answer are waited for until ctx ends. It is an error at once when so many refuse the connection,
// the login or the permissions that no majority is left: [driver.ErrRefused] when those that refuse
// the login or the permissions are so many alone, for trying again does not help then, or when two
// addresses lead to one server. Caps warns of those that refuse either of these where a majority is
// left.
func Open(ctx context.Context, c Config) (*Store, error) {
	c, err := c.fill()
	if err != nil {
		return nil, err
	}
	s := newStore(c)
	if err := s.await(ctx); err != nil {
		_ = s.Close()
		return nil, fmt.Errorf("redis quorum %s: %w", strings.Join(c.Addrs, ","), err)
	}
	for _, v := range s.servers {
		if err := v.state(); errors.Is(err, driver.ErrRefused) {
			s.locked = append(s.locked, err.Error())
		}
	}
	return s, nil
}
