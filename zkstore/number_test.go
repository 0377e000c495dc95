package zkstore_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/primacy-go/primacy/internal/zktest"
	"github.com/primacy-go/primacy/zkstore"
)

// A session that moves to another server while its delete is on the way: with the same number as that, a request there is told done that was not. The control shows it.
func TestACommitForAnotherServerIsNotTheAnswerOfALaterRequest(t *testing.T) {
	needAll(t)
	e := zktest.StartEnsemble(t, 3, zktest.Options{})
	from, to := e.Members[(e.Leader()+1)%3].Addr(), e.Members[(e.Leader()+2)%3].Addr()
	c := plain(t, e.Members[e.Leader()].Addr())
	create := func(path string) {
		if _, err := c.Create(path, nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(err)
		}
	}
	create("/stays")
	tries := 0
	moved := func(first, second int32) (wrong, answers int) {
		for end := time.Now().Add(30 * time.Second); time.Now().Before(end) && wrong < 2 && answers < 40; tries++ {
			path := fmt.Sprint("/goes", tries)
			create(path)
			old, sid, password := session(t, from, 0, nil)
			_, _ = old.Write(remove(first, path, -1))
			time.Sleep(rand.N(3 * time.Millisecond))
			conn, got, _ := session(t, to, sid, password)
			if got == sid {
				_, _ = conn.Write(remove(second, "/stays", 99)) // a version that it has not
				if frame, err := readFrame(conn); err == nil {
					answers++
					if code := int32(binary.BigEndian.Uint32(frame[16:])); code != -103 {
						wrong++
					}
				}
			}
			old.Close()
			conn.Close()
		}
		return wrong, answers
	}
	if wrong, answers := moved(-8, -8); wrong == 0 {
		t.Logf("the control shows nothing: %d answers, all right", answers) // it is a matter of milliseconds
	}
	if wrong, answers := moved(zkstore.OurNumber(1), zkstore.OurNumber(2)); wrong != 0 || answers == 0 {
		t.Errorf("%d of %d answers were another request's", wrong, answers)
	}
}

// session opens a connection and asks for a session: a new one, or that one.
func session(t *testing.T, addr string, sid uint64, password []byte) (net.Conn, uint64, []byte) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	asks := make([]byte, 48)
	binary.BigEndian.PutUint32(asks, 44)
	binary.BigEndian.PutUint32(asks[16:], 8000)
	binary.BigEndian.PutUint64(asks[20:], sid)
	binary.BigEndian.PutUint32(asks[28:], 16)
	copy(asks[32:], password)
	_, _ = conn.Write(asks)
	frame, err := readFrame(conn)
	if err != nil || len(frame) < 40 {
		return conn, 0, nil
	}
	return conn, binary.BigEndian.Uint64(frame[12:]), frame[24:40]
}

// remove is a request with that number to delete a node in that version.
func remove(number int32, path string, version int32) []byte {
	b := binary.BigEndian.AppendUint32(make([]byte, 4), uint32(number))
	b = binary.BigEndian.AppendUint32(b, 2)
	b = append(binary.BigEndian.AppendUint32(b, uint32(len(path))), path...)
	b = binary.BigEndian.AppendUint32(b, uint32(version))
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}
