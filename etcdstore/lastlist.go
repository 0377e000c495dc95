package etcdstore

import (
	"bytes"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/primacy-go/primacy/driver"
)

// lastList is the list that was read last. Who watches a list reads it twice a second: while no
// claim changes, that costs a small question instead of thousands of claims.
type lastList struct {
	mu      sync.Mutex
	prefix  string
	asked   time.Time // for that prefix; zero: never
	list    *list     // nil: none is kept
	forgets *time.Timer
}

// list is what Lines read at one revision.
type list struct {
	lines  []driver.Line
	at     readAt
	counts []int64 // how many keys each range had
}

// readAt is where in etcd's log something was read.
type readAt struct {
	rev  int64
	term uint64 // of the member that answered
}

func atOf(h *pb.ResponseHeader) readAt { return readAt{h.Revision, h.RaftTerm} }

// listKept is how long a list is kept after it was asked for. One that is asked for more rarely
// than that is not kept at all: it may be large.
const listKept = 10 * time.Second

// of returns the list of that prefix, nil if none is kept.
func (l *lastList) of(prefix string) *list {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.prefix != prefix {
		return nil
	}
	return l.list
}

// keep keeps what was just read, if the same was asked for a moment ago. It says whether it does:
// then nobody may change what was read.
func (l *lastList) keep(prefix string, read *list) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	again := l.prefix == prefix && !l.asked.IsZero() && time.Since(l.asked) < listKept
	l.prefix, l.asked, l.list = prefix, time.Now(), nil
	if !again {
		return false
	}
	l.list = read
	if l.forgets == nil {
		l.forgets = time.AfterFunc(listKept, l.forget)
	}
	l.forgets.Reset(listKept)
	return true
}

// forget drops the list: nobody has asked for it for a while, or the store is closed.
func (l *lastList) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = nil
}

// changes returns what asks etcd for keys that were written after the list was read: of each range
// at most one, and how many keys there are.
func (l *list) changes(ranges []*pb.RangeRequest) []*pb.RangeRequest {
	for _, r := range ranges {
		keysOnly(r, 1).MinModRevision = l.at.rev + 1
	}
	return ranges
}

// stands says whether all lines are as the list has them, as the answers to changes tell. A claim
// that came or changed has a mod revision above the list's. If there is none, the lines differ only
// if there are fewer claims. etcd counts the keys of the range, whatever their revision. A cluster
// that was restored from a backup has other revisions, perhaps larger ones, and another term.
func (l *list) stands(answers []*pb.RangeResponse, at readAt) bool {
	if at.rev < l.at.rev || at.term != l.at.term || len(answers) != len(l.counts) {
		return false
	}
	for i, a := range answers {
		if len(a.Kvs) > 0 || a.Count != l.counts[i] {
			return false
		}
	}
	return true
}

// linesAt returns a copy of the lines, as they still stood at a later revision.
func (l *list) linesAt(rev int64) []driver.Line {
	lines := slices.Clone(l.lines)
	for i := range lines {
		line := &lines[i]
		line.Revision = uint64(rev)
		if line.Holder != nil {
			holder := copied(*line.Holder)
			line.Holder = &holder
		}
		line.Waiters = slices.Clone(line.Waiters)
		for i, w := range line.Waiters {
			line.Waiters[i] = copied(w)
		}
	}
	return lines
}

func copied(e driver.Entry) driver.Entry {
	e.Value = bytes.Clone(e.Value)
	return e
}
