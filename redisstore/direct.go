package redisstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// direct is a connection that one call at a time has to itself, without the client's pool. The
// caller's own goroutine writes the call and reads the answer: in a hand-over each goroutine that
// wakes another costs as much as all that the server does. With go-redis's commands on such a
// connection an uncontended lock takes 10 % longer (measured with 9.17.3). The link's client dials
// it, so it leads to the same server. Calls that come seldom go through the client, which finds out
// whether a connection still works.
type direct struct {
	origin *redis.Client // the link's client when it was dialed
	client *redis.Client
	conn   net.Conn
	in     *bufio.Reader
	out    []byte
	used   time.Time
	until  time.Time // the deadline of conn
	cut    func()    // ends the call under way
}

const (
	maxIdle    = time.Second            // one that was not used for so long may have been closed by the server
	closeCalls = 100 * time.Millisecond // calls that find none free within so long of each other get one more
	maxDirects = 16
)

// dialDirect dials like client. go-redis obeys the deadline of ctx and not its end: so the
// connection is closed when ctx ends.
func dialDirect(ctx context.Context, client *redis.Client) (*direct, error) {
	o := *client.Options()
	var conn atomic.Pointer[net.Conn]
	dial := o.Dialer
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err == nil {
			conn.Store(&c)
		}
		return c, err
	}
	d := &direct{origin: client, client: redis.NewClient(own(&o, 1))}
	stop := context.AfterFunc(ctx, func() {
		if c := conn.Load(); c != nil {
			(*c).Close()
		}
	})
	err := d.client.Ping(ctx).Err()
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		d.client.Close()
		return nil, err
	}
	d.conn, d.used = *conn.Load(), time.Now()
	d.in = bufio.NewReader(d.conn)
	d.cut = func() { _ = d.conn.SetDeadline(time.Unix(1, 0)) }
	return d, nil
}

// close also ends the call under way. It closes the connection first: its client would look at the
// connection before closing it, and wait for the call that reads.
func (d *direct) close() {
	d.conn.Close()
	d.client.Close()
}

// refusal is an error that the server answered. The connection works on.
type refusal string

func (r refusal) Error() string { return string(r) }

// RedisError makes it a redis.Error, which the helpers of go-redis look for.
func (r refusal) RedisError() {}

// eval runs a script. It returns when ctx ends, and at the latest after two callLimits. broken says
// that the connection cannot be used any more.
func (d *direct) eval(
	ctx context.Context, sc *script, keys []string, publish string, args []any,
) (got reply, broken bool, err error) {
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	if d.used = time.Now(); d.until.Sub(d.used) < callLimit {
		d.until = d.used.Add(2 * callLimit)
		if err := d.conn.SetDeadline(d.until); err != nil {
			return nil, true, err
		}
	}
	if ctx.Done() != nil {
		stop := context.AfterFunc(ctx, d.cut)
		defer func() {
			if !stop() {
				broken = true
			}
			if broken && err != nil && ctx.Err() != nil {
				err = ctx.Err()
			}
		}()
	}
	answer, err := d.send("EVALSHA", sc.sha(), keys, publish, args)
	if err != nil && strings.HasPrefix(refused(err), "NOSCRIPT") {
		answer, err = d.send("EVAL", sc.text(), keys, publish, args)
	}
	got, err = parsed(answer, err)
	return got, err != nil && refused(err) == "" && !errors.Is(err, errReplica), err
}

// refused returns the words of an error that the server answered, and "" for any other.
func refused(err error) string {
	var no refusal
	errors.As(err, &no)
	return string(no)
}

// send writes a call and reads its answer. publish is the script's first argument.
func (d *direct) send(verb, text string, keys []string, publish string, args []any) (any, error) {
	b := append(d.out[:0], '*')
	b = append(strconv.AppendInt(b, int64(4+len(keys)+len(args)), 10), "\r\n"...)
	var room [20]byte
	b = bulk(bulk(bulk(b, verb), text), strconv.AppendInt(room[:0], int64(len(keys)), 10))
	for _, key := range keys {
		b = bulk(b, key)
	}
	b = bulk(b, publish)
	for _, a := range args {
		switch v := a.(type) {
		case string:
			b = bulk(b, v)
		case []byte:
			b = bulk(b, v)
		case int:
			b = bulk(b, strconv.AppendInt(room[:0], int64(v), 10))
		case int64:
			b = bulk(b, strconv.AppendInt(room[:0], v, 10))
		case uint64:
			b = bulk(b, strconv.AppendUint(room[:0], v, 10))
		case bool:
			if v {
				b = bulk(b, "1")
			} else {
				b = bulk(b, "0")
			}
		default:
			return nil, refusal(fmt.Sprintf("an argument of type %T", a))
		}
	}
	if d.out = b; cap(b) > 64<<10 {
		d.out = nil
	}
	if _, err := d.conn.Write(b); err != nil {
		return nil, err
	}
	return read(d.in)
}

// bulk appends a string as Redis reads it.
func bulk[T string | []byte](b []byte, s T) []byte {
	b = append(b, '$')
	b = append(strconv.AppendInt(b, int64(len(s)), 10), "\r\n"...)
	b = append(b, s...)
	return append(b, "\r\n"...)
}

// read reads one answer of the kinds that scripts give: strings, whole numbers, nothing, lists of
// these, and errors.
func read(in *bufio.Reader) (any, error) {
	line, err := in.ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	if len(line) < 3 || line[len(line)-2] != '\r' {
		return nil, fmt.Errorf("an answer that is not of the protocol: %.40q", line)
	}
	kind, rest := line[0], line[1:len(line)-2]
	switch kind {
	case '+':
		return string(rest), nil
	case '-':
		return nil, refusal(rest)
	case '_':
		return nil, nil
	}
	n, err := strconv.ParseInt(string(rest), 10, 64)
	if err != nil || n > 512<<20 && kind != ':' {
		return nil, fmt.Errorf("an answer that is not of the protocol: %.40q", line)
	}
	switch {
	case kind == ':':
		return n, nil
	case kind == '$' && n >= 0:
		return text(in, int(n))
	case kind == '*' && n >= 0:
		return list(in, n)
	case (kind == '$' || kind == '*') && n == -1:
		return nil, nil
	}
	return nil, fmt.Errorf("an answer that is not of the protocol: %.40q", line)
}

// okay is what nearly every answer begins with: it is made once.
var okay any = "OK"

// text reads a string of n bytes and the end of its line. A short one is not copied twice.
func text(in *bufio.Reader, n int) (any, error) {
	if n+2 > in.Size() {
		b := make([]byte, n+2)
		if _, err := io.ReadFull(in, b); err != nil {
			return nil, err
		}
		return string(b[:n]), nil
	}
	b, err := in.Peek(n + 2)
	if err == io.EOF && len(b) > 0 {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	v := okay
	if string(b[:n]) != "OK" {
		v = string(b[:n])
	}
	_, err = in.Discard(n + 2)
	return v, err
}

func list(in *bufio.Reader, n int64) (any, error) {
	all := make([]any, 0, min(n, 1024))
	for range n {
		v, err := read(in)
		if err != nil {
			// The rest of the list is not read: it would be taken for the next call's answer.
			if no := refused(err); no != "" {
				return nil, fmt.Errorf("an error inside an answer: %s", no)
			}
			return nil, err
		}
		all = append(all, v)
	}
	return all, nil
}

// take returns a free direct connection, or nil: then the call goes through the client. If calls
// come one upon another, it has one more dialed.
func (k *link) take(life context.Context, spawn func(func())) *direct {
	now := time.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	if n := len(k.free); n > 0 {
		d := k.free[n-1]
		k.free = k.free[:n-1]
		if now.Sub(d.used) < maxIdle {
			return d
		}
		k.dropLocked(d)
		k.dropFreeLocked()
	}
	if now.Sub(k.missed) < closeCalls && len(k.directs) < maxDirects && !k.dialing && !k.closed {
		k.dialing = true
		client := k.client
		spawn(func() { k.more(life, client) })
	}
	k.missed = now
	return nil
}

// more dials a direct connection. It ends when life does, since Close waits for it.
func (k *link) more(life context.Context, client *redis.Client) {
	ctx, cancel := context.WithTimeout(life, dialLimit)
	defer cancel()
	d, err := dialDirect(ctx, client)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.dialing = false
	switch {
	case err != nil:
		k.missed = time.Time{}
	case k.closed || k.client != d.origin:
		d.close()
	default:
		if k.directs == nil {
			k.directs = map[*direct]bool{}
		}
		k.directs[d] = true
		k.free = append(k.free, d)
	}
}

// give gives a direct connection back.
func (k *link) give(d *direct, broken bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if broken {
		k.dropLocked(d)
		k.dropFreeLocked() // the others may have gone with it
		return
	}
	if k.client != d.origin || k.closed {
		k.dropLocked(d)
		return
	}
	k.free = append(k.free, d)
	if old := k.free[0]; d.used.Sub(old.used) > maxIdle {
		k.free = k.free[1:]
		k.dropLocked(old)
	}
}

// dropFreeLocked closes the direct connections that are free. The caller holds mu.
func (k *link) dropFreeLocked() {
	for _, d := range k.free {
		k.dropLocked(d)
	}
	k.free = nil
}

// dropLocked closes a direct connection. The caller holds mu.
func (k *link) dropLocked(d *direct) {
	delete(k.directs, d)
	d.close()
}
