package pgstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/primacy-go/primacy/internal/storeutil"
)

// full is how a server says that it takes no more connections.
const full = "53300"

// beside is within what time the connection string's hosts are all being connected to, one
// beginning after the other, where no lease waits for it.
const beside = time.Second

// atHost is the key under which a connection of our own keeps which host it leads to.
const atHost = "primacy.host"

// host is one host of a connection string: its configurations, with TLS and without where either
// will do.
type host []*pgconn.FallbackConfig

func (h host) key() string { return net.JoinHostPort(h[0].Host, strconv.Itoa(int(h[0].Port))) }

// hostsIn returns the hosts of a configuration in their order.
func hostsIn(c *pgconn.Config) (all []host) {
	first := &pgconn.FallbackConfig{Host: c.Host, Port: c.Port, TLSConfig: c.TLSConfig}
	for _, f := range append([]*pgconn.FallbackConfig{first}, c.Fallbacks...) {
		if n := len(all); n > 0 && all[n-1].key() == (host{f}).key() {
			all[n-1] = append(all[n-1], f)
		} else {
			all = append(all, host{f})
		}
	}
	return all
}

// lead has a configuration lead to these hosts, in this order.
func lead(c *pgconn.Config, hosts ...host) {
	all := slices.Concat(hosts...)
	c.Host, c.Port, c.TLSConfig, c.Fallbacks = all[0].Host, all[0].Port, all[0].TLSConfig, all[1:]
}

// hostOrder knows where to look for the primary first. Without it each new connection would wait
// for a lost machine that the connection string names first.
type hostOrder struct {
	mu      sync.Mutex
	primary string // who was the primary when last seen
	silent  string // who let the last connection be made and then answered nothing
}

// sorted returns the hosts of a configuration, the primary first. With doubt, who was silent comes
// last instead: that one may be a former primary that waits for its standby for ever, or have been
// slow once. So only who connects to all of them beside each other may doubt: a pool would wait for
// a lost machine instead.
func (o *hostOrder) sorted(c *pgconn.Config, doubt bool) []host {
	o.mu.Lock()
	defer o.mu.Unlock()
	rank := func(h host) int {
		switch key := h.key(); {
		case doubt && key == o.silent:
			return 2
		case key == o.primary:
			return 0
		}
		return 1
	}
	all := hostsIn(c)
	slices.SortStableFunc(all, func(a, b host) int { return rank(a) - rank(b) })
	return all
}

// connected notes that a host says it is the primary.
func (o *hostOrder) connected(key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if key != o.silent { // who was silent has to answer first
		o.primary = key
	}
}

// answered notes that a host has answered a write over a connection of our own. It says whether
// another one was the primary until then.
func (o *hostOrder) answered(key string) (moved bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	moved = o.primary != "" && o.primary != key
	o.primary = key
	if o.silent == key {
		o.silent = ""
	}
	return moved
}

// unanswered notes that a host has not answered a write in time.
func (o *hostOrder) unanswered(key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.silent = key
}

// isSilent says whether the last write that was sent to this host had no answer.
func (o *hostOrder) isSilent(key string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return key == o.silent
}

// pauseAround returns a time of about d, other ones in other processes: a standby is asked by all
// that wait for its promotion.
func pauseAround(d time.Duration) time.Duration { return d + rand.N(d/2+1) }

// connect opens a connection of our own to the primary. A host that has refused has the next one
// begin at once; a silent one only holds it up: within the time given all have begun, and go on
// beside each other. Were they tried one after the other, a lost machine would use up the time that
// a lease has left. It fails once every host has. Where one is silent, those that have refused are
// asked again and again, about each time within: one may be a standby that is being promoted. A
// host that has answered no write is taken only if no other comes soon after it.
func (d *db) connect(ctx context.Context, within time.Duration) (_ *pgx.Conn, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	hosts := d.order.sorted(&d.cfg.ConnConfig.Config, true)
	c := connecting{order: &d.order, hosts: hosts, errs: make([]error, len(hosts))}
	defer func() {
		if err != nil {
			discard(c.doubted)
		}
	}()
	type answer struct {
		host int
		conn *pgx.Conn
		err  error
	}
	answers := make(chan answer)
	try := func(i int, pause time.Duration) {
		if storeutil.Sleep(ctx, pause) != nil {
			return
		}
		conn, err := d.connectTo(ctx, hosts[i])
		select {
		case answers <- answer{i, conn, err}:
		case <-ctx.Done():
			discard(conn)
		}
	}
	next := time.NewTimer(0)
	defer next.Stop()
	var longEnough <-chan time.Time // that a better connection than the doubted one was waited for
	for {
		select {
		case <-longEnough:
			return c.doubted, nil
		case <-next.C:
			go try(c.begun, 0)
			if c.begun++; c.begun < len(hosts) {
				next.Reset(within / time.Duration(len(hosts)))
			}
		case a := <-answers:
			switch {
			case a.err != nil:
			case c.takes(a.host, a.conn):
				return a.conn, nil
			default:
				longEnough = time.After(within / 2)
				continue
			}
			again, over := c.refused(a.host, a.err)
			if over != nil {
				return nil, over
			}
			if c.begun < len(hosts) {
				next.Reset(0)
			}
			if again {
				go try(a.host, pauseAround(within))
			}
		case <-ctx.Done():
			return nil, errors.Join(append(c.errs, ctx.Err())...)
		}
	}
}

// connecting is what is known while a connection is made.
type connecting struct {
	order         *hostOrder
	hosts         []host
	errs          []error // of each host the last one
	begun, failed int     // how many hosts
	doubted       *pgx.Conn
}

// takes says whether a connection is the one that was looked for. If not, it is kept as the doubted
// one: its host has answered no write, and another host may still come.
func (c *connecting) takes(i int, conn *pgx.Conn) bool {
	key := c.hosts[i].key()
	if c.order.isSilent(key) && c.failed < len(c.hosts)-1 {
		c.doubted = conn
		return false
	}
	discard(c.doubted)
	c.doubted = nil
	c.order.connected(key)
	return true
}

// refused notes that a host has refused a connection. over is an error if that was the last hope;
// again says whether the host may be asked once more.
func (c *connecting) refused(i int, err error) (again bool, over error) {
	if c.errs[i] == nil {
		c.failed++
	}
	c.errs[i] = err
	var pe *pgconn.PgError
	answered := errors.As(err, &pe)
	switch {
	case c.begun < len(c.hosts):
	case c.failed == len(c.hosts):
		over = errors.Join(c.errs...)
	case answered && pe.Code == full: // the caller may know another way to this one
		over = err
	}
	return !answered || !final(pe), over
}

// connectTo opens a connection to one host, with the pool's configuration.
func (d *db) connectTo(ctx context.Context, h host) (*pgx.Conn, error) {
	c := d.cfg.ConnConfig.Copy()
	lead(&c.Config, h)
	conn, err := pgx.ConnectConfig(ctx, c)
	if err != nil {
		return nil, err
	}
	conn.PgConn().CustomData()[atHost] = h.key()
	if err := d.cfg.AfterConnect(ctx, conn); err != nil {
		discard(conn)
		return nil, err
	}
	return conn, nil
}
