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

// Requests that we send beside those of go-zookeeper on its connection: those of each hand-over, at half the cost, and all that set watches. They have negative numbers,
// whose answers go-zookeeper passes over. A request begins with the connection that is there and ends with it: what was lost on the way is unknown, and it is never sent
// again.
//
// No two requests of a session have one number, on whatever connections: a server takes what was committed for its client's request by session and number alone
// (CommitProcessor). After a move to another server, one of the old server's that is committed only now would be told as the answer to a later one with its number.

// Codes of requests.
const (
	codeDelete   = 2
	codeExists   = 3
	codeData     = 4
	codeChildren = 12
	setAuth      = 100
	setWatches   = 101
)

const answerHead = 20 // of each answer: its length, the request's number, a zxid, an error

// ourNumber returns the number of our nth request. Those from -8 on have a meaning of their own.
func ourNumber(n uint32) int32 { return math.MinInt32 + int32(n%(1<<30)) }

func isOurs(number int32) bool { return number < -(1 << 30) }

var errLost = errors.New("the connection was lost")

// packet begins a request, with room for its length and number; finish ends it.
func packet(code uint32, room int) []byte {
	return binary.BigEndian.AppendUint32(make([]byte, 8, 12+room), code)
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

// readPacket asks for what a node, or its children, are, and for a watch if watched.
func readPacket(code uint32, path string, watched bool) []byte {
	b := append(appendText(packet(code, len(path)+5), path), 0)
	if watched {
		b[len(b)-1] = 1
	}
	return finish(b)
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

// readAnswer reads what answers a readPacket.
func readAnswer(code uint32, b []byte) (got looked, err error) {
	const statSize = 68
	take := func(n int) (part []byte) {
		if n < 0 || n > len(b) {
			err = errStrange
			return make([]byte, max(0, min(n, statSize)))
		}
		part, b = b[:n], b[n:]
		return part
	}
	number := func() int { return int(int32(binary.BigEndian.Uint32(take(4)))) }
	switch code {
	case codeChildren:
		for n := number(); n > 0 && err == nil; n-- {
			got.children = append(got.children, string(take(number())))
		}
	case codeData:
		got.data = take(max(0, number())) // -1: none
	}
	s := take(statSize)
	whole := func(at int) int64 { return int64(binary.BigEndian.Uint64(s[at:])) }
	half := func(at int) int32 { return int32(binary.BigEndian.Uint32(s[at:])) }
	got.stat = &zk.Stat{Czxid: whole(0), Mzxid: whole(8), Ctime: whole(16), Mtime: whole(24), Version: half(32), Cversion: half(36), Aversion: half(40),
		EphemeralOwner: whole(44), DataLength: half(52), NumChildren: half(56), Pzxid: whole(60)}
	got.exists = err == nil
	return got, err
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
	answer := w.begin(packet)
	if ctx.Done() == nil {
		w.ask(packet)
	} else {
		go w.ask(packet) // for it waits where the network takes nothing, which knows no context
	}
	select {
	case r := <-answer:
		return r.body, l.translate(r.err)
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.dead:
		return nil, l.why
	}
}

// begin gives a request of ours its number, and returns where its answer comes. It is to be sent then.
func (w *wire) begin(packet []byte) <-chan reply {
	answer := make(chan reply, 1)
	number := ourNumber(w.count.Add(1))
	binary.BigEndian.PutUint32(packet[4:], uint32(number))
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		answer <- reply{err: errLost}
		return answer
	}
	if w.asking == nil {
		w.asking = map[int32]chan<- reply{}
	}
	w.asking[number] = answer
	return answer
}

// ask sends a request that was begun.
func (w *wire) ask(packet []byte) {
	_, timeout := w.session()
	w.writing.Lock()
	defer w.writing.Unlock()
	_ = postpone(&w.writes, time.Now().Add(timeout*2/3), w.Conn.SetWriteDeadline) // as go-zookeeper has it
	w.send(packet)
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
		w.number = int32(binary.BigEndian.Uint32(w.front[4:]))
		w.ours = w.begun && isOurs(w.number)
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
		w.mu.Lock()
		defer w.mu.Unlock()
		if answer := w.asking[w.number]; answer != nil {
			delete(w.asking, w.number)
			answer <- reply{w.body, errorOf(w.code)}
		}
	}
}

// lost tells all who wait that no answer will come any more.
func (w *wire) lost() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	for _, answer := range w.asking {
		answer <- reply{err: errLost}
	}
	w.asking = nil
}

// Close closes the connection.
func (w *wire) Close() error {
	w.lost()
	return w.Conn.Close()
}
