package zkstore_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/internal/servertest"
	"github.com/primacy-go/primacy/internal/zktest"
	"github.com/primacy-go/primacy/zkstore"
)

// needAll skips a test that takes long, unless PRIMACY_ZK=all.
func needAll(t *testing.T) {
	t.Helper()
	if os.Getenv("PRIMACY_ZK") != "all" {
		t.Skip("PRIMACY_ZK=all runs it")
	}
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func grantAt(t *testing.T, s driver.Store, owner string, ttl time.Duration) driver.Lease {
	t.Helper()
	l, err := s.Grant(within(t, time.Minute), owner, ttl)
	if err != nil {
		t.Fatalf("Grant: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = l.Close(ctx)
	})
	return l
}

func enterAt(t *testing.T, l driver.Lease, name, id string) driver.Place {
	t.Helper()
	places, err := l.Claim(within(t, time.Minute), driver.Claim{Name: name, ID: id})
	if err != nil {
		t.Fatalf("Claim: %v", err)
	}
	return places[0]
}

func stopAtEnd(t *testing.T, s driver.Store) driver.Store {
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// fooled has a holder by way of one member and a waiter by way of the others, does something to the
// ensemble, and returns how long after the waiter held plain reads by way of that member still
// showed the holder's node. No renewal may have promised the lease until then. Heal is called once
// the waiter holds; late tells it what is returned in the end.
func fooled(t *testing.T, e *zktest.Ensemble, member int, harm func(), heal func(late func() time.Duration),
) time.Duration {
	t.Helper()
	var others []string
	for i, addr := range e.Addrs() {
		if i != member {
			others = append(others, addr)
		}
	}
	s := stopAtEnd(t, openAt(t, e.Members[member].Addr()))
	far := stopAtEnd(t, openAt(t, others...))
	reads := plain(t, e.Members[member].Addr())
	var r *renewing
	var q driver.Place
	var successor driver.Lease
	var node string
	for try := 1; r == nil; try++ {
		if try > 10 {
			t.Fatal("ten leases ended before anything was done to the ensemble")
		}
		// One that is not renewed in time ends, on a busy machine too: then another one is tried.
		l, name := grantAt(t, s, "holder", 2500*time.Millisecond), fmt.Sprint("job", try)
		p := enterAt(t, l, name, "one")
		children, _, err := reads.Children("/primacy/" + name)
		if err != nil || len(children) != 1 {
			t.Logf("the line has %v, %v", children, err)
			continue
		}
		node = "/primacy/" + name + "/" + children[0]
		r = renewAll(l)
		successor = grantAt(t, far, "successor", 3*time.Second)
		keep(t, successor)
		q = enterAt(t, successor, name, "two")
		if !r.await(3) || !p.Held || q.Held {
			t.Logf("places = %+v, %+v; the lease of the first has ended: %v", p, q, zkstore.IsClosed(r.ended))
			r.halt()
			r = nil
		}
	}
	harm()
	var shown atomic.Pointer[time.Time] // when a plain read was answered for the last time that the node is there
	read := make(chan struct{})
	go func() {
		defer close(read)
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if ok, _, err := reads.Exists(node); err == nil && ok {
				at := time.Now()
				shown.Store(&at)
			} else if err == nil || zkstore.IsClosed(r.stop) {
				break
			}
		}
	}()
	if _, err := drivertest.Await(within(t, time.Minute), successor, q); err != nil {
		t.Fatalf("the successor does not come to hold: %v", err)
	}
	held := time.Now()
	late := func() time.Duration {
		if last := shown.Load(); last != nil {
			return last.Sub(held)
		}
		return 0
	}
	heal(late)
	r.halt()
	<-read
	if r.promised.After(held) {
		t.Errorf("a renewal promised the lease for %v after another held", r.promised.Sub(held))
	}
	return late()
}

// renewing renews a lease again and again, until it is over or halt is called.
type renewing struct {
	promised    time.Time // until when a renewal said that the lease lives; to be read after halt
	accepted    chan struct{}
	stop, ended chan struct{}
}

func renewAll(l driver.Lease) *renewing {
	r := &renewing{accepted: make(chan struct{}, 100), stop: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		defer close(r.ended)
		for {
			called := time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			err := l.Renew(ctx)
			cancel()
			if err == nil {
				r.promised = called.Add(l.TTL())
				select {
				case r.accepted <- struct{}{}:
				default:
				}
			}
			select {
			case <-r.stop:
				return
			case <-time.After(l.TTL() / 5):
			}
			if errors.Is(err, driver.ErrGone) {
				return
			}
		}
	}()
	return r
}

// await waits until n renewals have been accepted. False: the lease has ended before.
func (r *renewing) await(n int) bool {
	for range n {
		select {
		case <-r.accepted:
		case <-r.ended:
			return false
		}
	}
	return true
}

func (r *renewing) halt() {
	close(r.stop)
	<-r.ended
}

// keep renews a lease until the test ends.
func keep(t *testing.T, l driver.Lease) {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	go func() {
		for ctx.Err() == nil {
			_ = l.Renew(ctx)
			select {
			case <-ctx.Done():
			case <-time.After(l.TTL() / 5):
			}
		}
	}()
}

// The control too: a read is answered by a member that is cut off while the others have given the
// lease to another, so it proves nothing.
func TestARenewalIsNotAnsweredByAMemberThatIsCutOff(t *testing.T) {
	servertest.Long(t, "race-library")
	t.Parallel()
	e := zktest.StartEnsemble(t, 3, zktest.Options{Cuttable: true, NoSync: true, Config: []string{"syncLimit=20"}})
	member := (e.Leader() + 1) % 3
	late := fooled(t, e, member, func() { e.Isolate(member, true) }, func(late func() time.Duration) {
		for end := time.Now().Add(time.Minute); late() < 300*time.Millisecond && time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond)
		}
		e.Isolate(member, false)
	})
	t.Logf("plain reads by a member that is cut off showed the old holder for %v after another held", late)
	if late < 100*time.Millisecond {
		t.Errorf("the control shows nothing: reads stopped %v after another held", late)
	}
}

func TestARenewalIsNotAnsweredByALeaderThatWasFrozen(t *testing.T) {
	needAll(t)
	e := zktest.StartEnsemble(t, 3, zktest.Options{NoSync: true})
	was := e.Leader()
	late := fooled(t, e, was, e.Members[was].Stop, func(func() time.Duration) { e.Members[was].Cont() })
	t.Logf("plain reads by a leader that was frozen showed the old holder for %v after another held", late)
}

// moves has a lease live on through the loss of a member.
func moves(t *testing.T, e *zktest.Ensemble, kill func()) {
	t.Helper()
	s := stopAtEnd(t, openAt(t, e.Addrs()...))
	l := grantAt(t, s, "holder", 20*time.Second)
	name := fmt.Sprint(rand.Uint64())
	p := enterAt(t, l, name, "one")
	if err := l.Renew(within(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	kill()
	for range 8 {
		time.Sleep(500 * time.Millisecond)
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		err := l.Renew(ctx)
		cancel()
		if errors.Is(err, driver.ErrGone) {
			t.Fatalf("Renew after a member was lost: %v", err)
		}
	}
	if err := l.Renew(within(t, time.Minute)); err != nil {
		t.Fatalf("Renew: %v", err)
	}
	ln, err := s.Line(within(t, time.Minute), name)
	if err != nil || ln.Holder == nil || ln.Holder.Token != p.Token {
		t.Errorf("line = %+v, %v, want token %d to hold as before", ln, err, p.Token)
	}
}

func TestALeaseOutlivesTheMemberItIsConnectedToAndTheLeader(t *testing.T) {
	needAll(t)
	e := zktest.StartEnsemble(t, 3, zktest.Options{NoSync: true, Config: long})
	was := e.Leader()
	moves(t, e, e.Members[was].Kill)
	e.Members[was].Restart()
	for i := range e.Members { // the one it is connected to is one of them
		moves(t, e, func() {
			e.Members[i].Kill()
			time.Sleep(200 * time.Millisecond)
			e.Members[i].Restart()
		})
	}
}

func TestConformanceOfAnEnsemble(t *testing.T) {
	needAll(t)
	e := zktest.StartEnsemble(t, 3, zktest.Options{NoSync: true, Config: long})
	c := plain(t, e.Addrs()...)
	drivertest.Run(t, drivertest.Harness{
		Open: func(t testing.TB) driver.Store { return openAt(t, e.Addrs()...) },
		TTL:  2 * time.Second,
		Remove: func(t testing.TB, _ string, token uint64) {
			if _, err := c.Sync("/primacy"); err != nil {
				t.Fatal(err)
			}
			removeByHand(t, c, token)
		},
		Cut: func(t testing.TB) (driver.Store, func(bool)) {
			p := drivertest.NewProxy(t, e.Members[0].Addr())
			return openAt(t, p.Addr), p.Cut
		},
		Restart: func(testing.TB) { e.Members[e.Leader()].Restart() },
	})
}

// A session that moves to another server while its delete is on the way: with the same number as
// that, a request there is told done that was not. The control shows it.
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
	if wrong, answers := moved(zkstore.RequestNumber(1), zkstore.RequestNumber(2)); wrong != 0 || answers == 0 {
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
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
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
