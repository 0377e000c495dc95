package agent

import (
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// door counts who has come in by one listener. What is open at one takes no room from another: any
// user of the machine can fill a port of loopback, and the owner still campaigns on his socket.
// Where others can reach the socket too, those who may not use it take no room from those who may.
type door struct {
	addr                               string
	most                               int                // connections; 0: any number
	admits                             func(uid int) bool // whether a user may use the unix socket; nil: all may
	conns, strangers, clients, streams atomic.Int64
	accepted                           int // by the one goroutine that accepts
}

// perDoor are the kinds of requests that stay, each with a limit of its own at each door.
type perDoor struct {
	what, flag string
	of         func(*door) *atomic.Int64
	most       func(Options) int
}

var (
	clientsPerDoor = perDoor{"campaigns and locks", "--max-clients",
		func(d *door) *atomic.Int64 { return &d.clients }, func(o Options) int { return o.Clients }}
	streamsPerDoor = perDoor{"event streams", "--max-streams",
		func(d *door) *atomic.Int64 { return &d.streams }, func(o Options) int { return o.Streams }}
)

// ConnsFor is how many connections a listener has for so many clients and streams: requests that do
// not stay have 250 of their own.
func ConnsFor(clients, streams int) int { return clients + streams + 250 }

// refusedConns is how many connections over the limit are told so, and how many of users who may
// not use the socket; further ones are closed.
const refusedConns = 50

// listener makes a conn of each connection.
type listener struct {
	net.Listener
	door  *door
	plain bool // it only counts
}

// acceptedAtOnce is after how many connections a listener rests for a moment: a thousand readers
// that come at once would otherwise hold up the renewals of those who lead, as fanout says.
const acceptedAtOnce = 16

func (l listener) Accept() (net.Conn, error) {
	for {
		nc, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.door.accepted++; l.door.accepted%acceptedAtOnce == 0 {
			time.Sleep(time.Millisecond)
		}
		c := &conn{Conn: nc, uid: -1, door: l.door}
		if !l.plain {
			c.know(nc)
		}
		if !l.door.takes(c) {
			_ = c.Close()
			continue
		}
		return c, nil
	}
}

// takes counts a connection, and says whether it is kept, if only to be told why it is refused.
func (d *door) takes(c *conn) bool {
	if c.unix && d.admits != nil && !d.admits(c.uid) {
		c.counted = &d.strangers
		return d.strangers.Add(1) <= refusedConns
	}
	c.counted = &d.conns
	over := int(d.conns.Add(1)) - d.most
	c.refused = d.most > 0 && over > 0
	return d.most == 0 || over <= refusedConns
}

// Limit closes what comes to l above so many connections at once, where no answer can tell why.
func Limit(l net.Listener, most int) net.Listener {
	return listener{l, &door{most: max(1, most-refusedConns)}, true}
}

// know notes who is at the other end, and has a peer that fell silent noticed.
func (c *conn) know(nc net.Conn) {
	switch nc := nc.(type) {
	case *net.UnixConn:
		c.unix, c.local, c.uid = true, true, peerUID(nc)
	case *net.TCPConn:
		remote, _ := nc.RemoteAddr().(*net.TCPAddr)
		c.local = remote != nil && remote.IP.IsLoopback()
		_ = nc.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: silentAfter / 2, Interval: silentAfter / 4,
			Count: 2})
		limitSilence(nc, silentAfter)
	}
}

// silentAfter is how long a machine that does not answer is waited for before its connection counts
// as lost.
const silentAfter = 10 * time.Second

// handler answers requests of connections over the limit, and leaves the others to next.
func (d *door) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c := connOf(r); c != nil && c.refused {
			w.Header().Set("Connection", "close")
			tooMany.Write(w, "%d connections are open on %s, as many as --max-clients and --max-streams allow: "+
				"close some, or start the server with larger ones", d.most, d.addr)
			return
		}
		next.ServeHTTP(w, r)
	})
}
