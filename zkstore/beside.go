package zkstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/go-zookeeper/zk"
)

// Requests that we send beside those of go-zookeeper on its connection: those of each hand-over, at half the cost, and one that it has only for itself. All have the same
// negative number, for ZooKeeper answers a connection's requests in their order; go-zookeeper passes over their answers. A request begins with the connection that
// is there and ends with it: what was lost on the way is unknown, and it is never sent again.

// Codes of requests.
const (
	codeDelete   = 2
	codeChildren = 12
	setWatches   = 101
)

const (
	ourNumber  = -8 // which ZooKeeper's own client gives to its requests beside
	answerHead = 20 // of each answer: its length, the request's number, a zxid, an error
)

var errLost = errors.New("the connection was lost")

// packet begins a request; finish ends it.
func packet(code uint32, room int) []byte {
	number := int32(ourNumber)
	b := make([]byte, 4, 12+room)
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, uint32(number)), code)
}

func finish(b []byte) []byte {
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

func appendText(b []byte, text string) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(text))), text...)
}

// deletePacket asks to delete a node, whatever its version.
func deletePacket(path string) []byte {
	return finish(binary.BigEndian.AppendUint32(appendText(packet(codeDelete, len(path)+8), path), math.MaxUint32))
}

func childrenPacket(path string) []byte {
	return finish(append(appendText(packet(codeChildren, len(path)+5), path), 0))
}

// watchesPacket asks for watches on nodes as they are. Of one that is not there the answer is preceded by the event that it was deleted.
func watchesPacket(paths []string) []byte {
	b := packet(setWatches, 20+len(paths)*120)
	b = binary.BigEndian.AppendUint64(b, math.MaxInt64) // no change up to now is news
	b = binary.BigEndian.AppendUint32(b, uint32(len(paths)))
	for _, path := range paths {
		b = appendText(b, path)
	}
	return finish(binary.BigEndian.AppendUint64(b, 0)) // no watches of the two other kinds
}

// readChildren reads what answers a request for children.
func readChildren(b []byte) (names []string, stat *zk.Stat, err error) {
	const statSize = 68
	take := func(n int) (part []byte) {
		if n < 0 || n > len(b) {
			err = errStrange
			return make([]byte, max(0, min(n, statSize)))
		}
		part, b = b[:n], b[n:]
		return part
	}
	for n := int32(binary.BigEndian.Uint32(take(4))); n > 0 && err == nil; n-- {
		names = append(names, string(take(int(int32(binary.BigEndian.Uint32(take(4)))))))
	}
	s := take(statSize)
	whole := func(at int) int64 { return int64(binary.BigEndian.Uint64(s[at:])) }
	half := func(at int) int32 { return int32(binary.BigEndian.Uint32(s[at:])) }
	stat = &zk.Stat{Czxid: whole(0), Mzxid: whole(8), Ctime: whole(16), Mtime: whole(24), Version: half(32), Cversion: half(36), Aversion: half(40),
		EphemeralOwner: whole(44), DataLength: half(52), NumChildren: half(56), Pzxid: whole(60)}
	return names, stat, err
}

// errorOf is go-zookeeper's error for a code of ZooKeeper's.
func errorOf(code int32) error {
	switch code {
	case 0:
		return nil
	case -101:
		return zk.ErrNoNode
	case -102:
		return zk.ErrNoAuth
	case -103:
		return zk.ErrBadVersion
	case -112:
		return zk.ErrSessionExpired
	case -115:
		return zk.ErrAuthFailed
	}
	return fmt.Errorf("ZooKeeper's error %d", code)
}

// reply is the answer to a request of ours.
type reply struct {
	body []byte
	err  error
}

// beside does a request of ours.
func (l *link) beside(ctx context.Context, packet []byte) ([]byte, error) {
	if err := l.ready(ctx); err != nil {
		return nil, err
	}
	l.mu.Lock()
	w, ok := l.present, l.isUp
	l.mu.Unlock()
	if !ok {
		return nil, errLost
	}
	select {
	case r := <-w.begin(packet):
		return r.body, l.translate(r.err)
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.dead:
		return nil, l.why
	}
}

// begin sends a request of ours. The answer comes in the channel.
func (w *wire) begin(packet []byte) <-chan reply {
	answer := make(chan reply, 1)
	w.writing.Lock() // for the answers come in the order of the requests
	defer w.writing.Unlock()
	w.mu.Lock()
	ended := w.ended
	if !ended {
		w.asking = append(w.asking, answer)
	}
	w.mu.Unlock()
	if ended {
		answer <- reply{err: errLost}
		return answer
	}
	_ = postpone(&w.writes, time.Now().Add(w.span), w.Conn.SetWriteDeadline)
	w.send(packet)
	return answer
}

// pass goes along with what go-zookeeper reads, and so gives out an answer of ours when all that came before it has been heard. It is its reader's.
func (w *wire) pass(b []byte) {
	for len(b) > 0 {
		if w.left > 0 {
			n := min(w.left, len(b))
			if w.ours {
				w.body = append(w.body, b[:n]...)
			}
			w.left, b = w.left-n, b[n:]
			w.whetherWhole()
			continue
		}
		n := min(answerHead-len(w.front), len(b))
		w.front, b = append(w.front, b[:n]...), b[n:]
		if len(w.front) < answerHead {
			return
		}
		w.left = max(0, int(binary.BigEndian.Uint32(w.front))+4-answerHead)
		w.ours = w.begun && int32(binary.BigEndian.Uint32(w.front[4:])) == ourNumber
		w.code = int32(binary.BigEndian.Uint32(w.front[16:]))
		if w.begun { // the first answer of a connection has no number, and no zxid
			w.zxid.Store(max(w.zxid.Load(), int64(binary.BigEndian.Uint64(w.front[8:])))) // events have -1
		}
		w.front, w.body, w.begun = w.front[:0], nil, true
		w.whetherWhole()
	}
}

func (w *wire) whetherWhole() {
	if w.ours && w.left == 0 {
		w.answer(reply{w.body, errorOf(w.code)}, false)
	}
}

// answer gives the first who waits his answer, or all of them if none will come any more.
func (w *wire) answer(r reply, ended bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = w.ended || ended
	for len(w.asking) > 0 {
		w.asking[0] <- r
		w.asking = w.asking[1:]
		if !ended {
			return
		}
	}
}

// Close closes the connection.
func (w *wire) Close() error {
	w.answer(reply{err: errLost}, true)
	return w.Conn.Close()
}
