package zkstore

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ZooKeeper's protocol: requests, answers and errors as bytes.

// opcode says what kind a request is.
type opcode int32

const (
	opCreate     opcode = 1
	opDelete     opcode = 2
	opExists     opcode = 3
	opGetData    opcode = 4
	opSetData    opcode = 5
	opGetACL     opcode = 6
	opSync       opcode = 9
	opPing       opcode = 11
	opChildren   opcode = 12
	opCheck      opcode = 13
	opMulti      opcode = 14
	opAuth       opcode = 100
	opSetWatches opcode = 101
	opClose      opcode = -11
)

// Numbers of requests with a meaning of their own, and of events.
const (
	eventNumber = -1
	pingNumber  = -2
	authNumber  = -4
)

// op is a request, alone or in a multi.
type op struct {
	code opcode
	body []byte
}

// frame returns the request as it is sent, under that number.
func (o op) frame(number int32) []byte {
	b := appendInt(make([]byte, 0, 12+len(o.body)), int32(8+len(o.body)))
	return append(appendInt(appendInt(b, number), int32(o.code)), o.body...)
}

func appendInt(b []byte, n int32) []byte { return binary.BigEndian.AppendUint32(b, uint32(n)) }

func appendLong(b []byte, n int64) []byte { return binary.BigEndian.AppendUint64(b, uint64(n)) }

func appendText[T string | []byte](b []byte, text T) []byte {
	return append(appendInt(b, int32(len(text))), text...)
}

// Flags of a create.
const (
	ephemeral  = 1
	sequential = 2
)

// Permissions in an ACL.
const (
	mayRead, mayWrite, mayCreate, mayDelete, mayAdmin = 1, 2, 4, 8, 16

	mayAll = mayRead | mayWrite | mayCreate | mayDelete | mayAdmin
)

// aclOf returns an ACL by which those with that ID of a scheme may do everything.
func aclOf(scheme, id string) []byte {
	return appendText(appendText(appendInt(appendInt(nil, 1), mayAll), scheme), id)
}

// createOp makes a node with that ACL.
func createOp(path string, data, acl []byte, flags int32) op {
	return op{opCreate, appendInt(append(appendText(appendText(nil, path), data), acl...), flags)}
}

// setOp writes a node of that version, -1 for any.
func setOp(path string, data []byte, version int32) op {
	return op{opSetData, appendInt(appendText(appendText(nil, path), data), version)}
}

// deleteOp deletes a node, whatever its version.
func deleteOp(path string) op { return op{opDelete, appendInt(appendText(nil, path), -1)} }

// checkOp fails unless a node has that version. It works in a multi only.
func checkOp(path string, version int32) op {
	return op{opCheck, appendInt(appendText(nil, path), version)}
}

// existsOp fails unless a node is there. It works in a multi only.
func existsOp(path string) op { return checkOp(path, -1) }

// pathOp asks for what the path alone says.
func pathOp(code opcode, path string) op { return op{code, appendText(nil, path)} }

// readOp reads a node or its children, and sets a watch if watched.
func readOp(code opcode, path string, watched bool) op {
	o := pathOp(code, path)
	if watched {
		o.body = append(o.body, 1)
	} else {
		o.body = append(o.body, 0)
	}
	return o
}

// watchesOp sets watches on nodes as they are. For a node that is not there, the event that it was
// deleted comes before the answer.
func watchesOp(paths []string) op {
	const noChangeUntilNow = 1<<63 - 1 // is told
	b := appendInt(appendLong(nil, noChangeUntilNow), int32(len(paths)))
	for _, path := range paths {
		b = appendText(b, path)
	}
	return op{opSetWatches, appendLong(b, 0)} // and no watches of the two other kinds
}

// authOp tells who we are.
func authOp(user, password string) op {
	return op{opAuth, appendText(appendText(appendInt(nil, 0), "digest"), user+":"+password)}
}

// multiOp does all of ops or none.
func multiOp(ops []op) op {
	head := func(b []byte, code opcode, done byte) []byte {
		return appendInt(append(appendInt(b, int32(code)), done), -1)
	}
	var b []byte
	for _, o := range ops {
		b = append(head(b, o.code, 0), o.body...)
	}
	return op{opMulti, head(b, -1, 1)}
}

// result is what came of one of the ops of a multi.
type result struct {
	path string // of what was created
	stat stat   // of what was written
	err  error
}

// readResults reads the answer to a multi. The error is that of the op that was the reason why none
// was done.
func readResults(b []byte) (all []result, why error) {
	r := reader{rest: b}
	for {
		code, done, _ := opcode(r.int()), r.take(1)[0] != 0, r.int()
		if r.short {
			return nil, errStrange
		}
		if done {
			return all, why
		}
		var got result
		switch code {
		case opCreate:
			got.path = r.text()
		case opSetData:
			got.stat = r.stat()
		case -1:
			if code := r.int(); code != 0 {
				got.err = serverError(code)
			}
		}
		if all = append(all, got); why == nil {
			why = got.err
		}
	}
}

// stat is what is known of a node.
type stat struct {
	czxid, mzxid, pzxid int64
	version, cversion   int32
	ephemeralOwner      int64
	children            int32
}

// reader takes an answer apart.
type reader struct {
	rest  []byte
	short bool // there was less than was asked for
}

// take returns the next n bytes; zeros if there are fewer.
func (r *reader) take(n int) (part []byte) {
	if n < 0 || n > len(r.rest) {
		r.short, r.rest = true, nil
		return make([]byte, min(max(n, 1), 8))
	}
	part, r.rest = r.rest[:n], r.rest[n:]
	return part
}

func (r *reader) int() int32 { return int32(binary.BigEndian.Uint32(r.take(4))) }

func (r *reader) long() int64 { return int64(binary.BigEndian.Uint64(r.take(8))) }

func (r *reader) bytes() []byte { return r.take(max(0, int(r.int()))) } // -1: none

func (r *reader) text() string { return string(r.bytes()) }

func (r *reader) stat() (s stat) {
	s.czxid, s.mzxid = r.long(), r.long()
	r.take(16) // two times
	s.version, s.cversion = r.int(), r.int()
	r.int() // the ACL's version
	s.ephemeralOwner = r.long()
	r.int() // the length of the data
	s.children, s.pzxid = r.int(), r.long()
	return s
}

// readLooked reads the answer to a readOp.
func readLooked(code opcode, b []byte) (got looked, err error) {
	r := reader{rest: b}
	switch code {
	case opChildren:
		for n := r.int(); n > 0 && !r.short; n-- {
			got.children = append(got.children, r.text())
		}
	case opGetData:
		got.data = r.bytes()
	}
	got.stat = r.stat()
	if r.short {
		return looked{}, errStrange
	}
	got.exists = true
	return got, nil
}

// errStrange says that what answers is no ZooKeeper, or speaks TLS where we do not.
var errStrange = errors.New("what answers there does not speak as ZooKeeper does")

// serverError is an error of ZooKeeper's, by its code.
type serverError int32

const (
	errNoNode     serverError = -101
	errNoAuth     serverError = -102
	errBadVersion serverError = -103
	errNodeExists serverError = -110
	errExpired    serverError = -112
	errInvalidACL serverError = -114
	errAuthFailed serverError = -115
)

func (e serverError) Error() string {
	switch e {
	case errNoNode:
		return "no such node"
	case errNoAuth:
		return "not authenticated"
	case errBadVersion:
		return "another version"
	case errNodeExists:
		return "the node exists"
	case errExpired:
		return "the session has expired"
	case errInvalidACL:
		return "invalid ACL"
	case errAuthFailed:
		return "authentication failed"
	}
	return fmt.Sprintf("ZooKeeper's error %d", int32(e))
}
