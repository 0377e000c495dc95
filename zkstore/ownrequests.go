package zkstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"github.com/go-zookeeper/zk"
)

// Requests of ours go over go-zookeeper's connection, between its own: those of each hand-over, at
// half the cost, and all that read or set watches. They have negative numbers, whose answers
// go-zookeeper passes over. A request belongs to one connection: what was lost with it is unknown,
// and it is never sent again.

// Codes of requests.
const (
	codeDelete   = 2
	codeExists   = 3
	codeData     = 4
	codeChildren = 12
	setAuth      = 100
	setWatches   = 101
)

// ourNumber returns the number of a session's nth request of ours. Those from -8 on have a meaning
// of their own.
//
// No two requests of a session have one number, on whatever connections: a server takes what was
// committed for its client's request by session and number alone (CommitProcessor). After a move
// to another server, one of the old server's that is committed only now would be told as the
// answer to a later one with its number.
func ourNumber(n uint32) int32 { return math.MinInt32 + int32(n%(1<<30)) }

func isOurs(number int32) bool { return number < -(1 << 30) }

var errLost = errors.New("the connection was lost")

// reply is what came of a request of ours.
type reply struct {
	body []byte
	err  error
}

// ownRequests are the requests of ours that wait for an answer on one connection.
type ownRequests struct {
	count *atomic.Uint32 // of all requests of ours, on all connections of the session

	mu      sync.Mutex
	waiting map[int32]chan<- reply // by number
	ended   bool                   // no answer will come any more
}

// begin gives a request its number, and returns where its answer comes. The caller sends it then.
func (o *ownRequests) begin(packet []byte) <-chan reply {
	result := make(chan reply, 1)
	number := ourNumber(o.count.Add(1))
	binary.BigEndian.PutUint32(packet[4:], uint32(number))
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		result <- reply{err: errLost}
	} else {
		o.waiting[number] = result
	}
	return result
}

// deliver gives an answer to who waits for it.
func (o *ownRequests) deliver(a *answer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if result := o.waiting[a.number]; result != nil {
		delete(o.waiting, a.number)
		result <- reply{a.body, errorOf(a.code)}
	}
}

// end answers all who wait that the connection was lost.
func (o *ownRequests) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
	for _, result := range o.waiting {
		result <- reply{err: errLost}
	}
	clear(o.waiting)
}

// answer is one answer or event as a server sends it.
type answer struct {
	number int32 // the request's; -1: an event
	zxid   int64
	code   int32  // 0, or an error
	body   []byte // only of answers to requests of ours
}

// answers cuts a stream of bytes into answers.
type answers struct {
	begun bool   // the first answer is over, which is to the request for a session and has no number
	head  []byte // of the answer that is being read: its length, number, zxid and code
	left  int    // how much of its body is to come
	now   answer
}

const answerHead = 20

// next goes on with b. It returns the answer that is whole by that, if one is, and what of b
// lies behind it.
func (s *answers) next(b []byte) (whole *answer, rest []byte) {
	if len(s.head) < answerHead {
		n := min(answerHead-len(s.head), len(b))
		s.head, b = append(s.head, b[:n]...), b[n:]
		if len(s.head) < answerHead {
			return nil, nil
		}
		number := func(at int) int32 { return int32(binary.BigEndian.Uint32(s.head[at:])) }
		s.left = max(0, int(binary.BigEndian.Uint32(s.head))+4-answerHead)
		s.now = answer{number: number(4), zxid: int64(binary.BigEndian.Uint64(s.head[8:])), code: number(16)}
	}
	n := min(s.left, len(b))
	if s.begun && isOurs(s.now.number) {
		s.now.body = append(s.now.body, b[:n]...)
	}
	if s.left -= n; s.left > 0 {
		return nil, nil
	}
	s.head = s.head[:0]
	if s.begun {
		whole = &s.now
	}
	s.begun = true
	return whole, b[n:]
}

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

// watchesPacket asks for watches on nodes as they are. Of one that is not there the answer is
// preceded by the event that it was deleted.
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
	got.stat = &zk.Stat{
		Czxid: whole(0), Mzxid: whole(8), Ctime: whole(16), Mtime: whole(24), Version: half(32), Cversion: half(36),
		Aversion: half(40), EphemeralOwner: whole(44), DataLength: half(52), NumChildren: half(56), Pzxid: whole(60),
	}
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
