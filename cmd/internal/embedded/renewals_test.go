//go:build linux

package embedded

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/primacy-go/primacy/internal/boottime"
)

// The lease of a process that was killed ends, also where each later host lives for less than its
// TTL; and never before its TTL has passed.
func TestADeadLeaseEndsThoughNoHostLivesAsLong(t *testing.T) {
	t.Parallel()
	dir := privateDir(t)
	const ttl = 10 * time.Second
	dead := startChild(t, dir)
	dead.opened()
	sent := boottime.Now()
	dead.want("lease 10 k", "granted 10")
	dead.kill()
	for end := time.Now().Add(waitLimit); ; time.Sleep(50 * time.Millisecond) {
		n := openNode(t, dir)
		there := get(t, n, "k") != ""
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
		if !there {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("it stands %v after its only grant", boottime.Now()-sent)
		}
	}
	if lived := boottime.Now() - sent; lived < ttl {
		t.Errorf("it ended %v after its grant was sent, with a TTL of %v", lived, ttl)
	}
}

// rewrite changes what is noted in dir.
func rewrite(t *testing.T, dir string, change func(b []byte) []byte) {
	t.Helper()
	path := filepath.Join(dir, renewalsName)
	b, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, change(b), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A new host ends what is noted as over, and nothing of which it is not sure.
func TestWhatIsKnownToBeOverEndsAndNothingElse(t *testing.T) {
	t.Parallel()
	const ttl = 600 * time.Second
	for _, c := range []struct {
		name string
		age  time.Duration
		mend func(b []byte) []byte
		ends bool
	}{
		{"over", ttl, nil, true},
		{"not over", ttl - 4*waitLimit, nil, false},
		{"of another boot", ttl, func(b []byte) []byte { b[len("primacy leases 1\n")] ^= 1; return b }, false},
		{"of another format", ttl, func(b []byte) []byte { b[0] ^= 1; return b }, false},
		{"a host in between", ttl, func(b []byte) []byte {
			b[strings.Index(string(b), "raft term ")+len("raft term ")] ^= 1
			return b
		}, false},
		{"torn", ttl, func(b []byte) []byte { b[renewalsHead+8] ^= 1; return b }, false},
		{"cut", ttl, func(b []byte) []byte { return b[:renewalsHead+slotBytes-1] }, false},
		{"empty", ttl, func([]byte) []byte { return nil }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := privateDir(t)
			n := openNode(t, dir)
			lease, err := client(t, n).Grant(t.Context(), int64(ttl/time.Second))
			if err != nil {
				t.Fatal(err)
			}
			put(t, n, "k", "v", clientv3.WithLease(lease.ID))
			if err := n.Close(); err != nil {
				t.Fatal(err)
			}
			rewrite(t, dir, func(b []byte) []byte {
				copy(b[renewalsHead:], slotOf(int64(lease.ID), boottime.Now()-c.age))
				if c.mend != nil {
					b = c.mend(b)
				}
				return b
			})
			n = openNode(t, dir)
			if there := get(t, n, "k") != ""; there == c.ends {
				t.Errorf("it stands: %v", there)
			}
			// What the next host made of it, the one after that reads.
			put(t, n, "other", "v")
			if err := n.Close(); err != nil {
				t.Fatal(err)
			}
			if there := get(t, openNode(t, dir), "k") != ""; there == c.ends {
				t.Errorf("it stands under the next host: %v", there)
			}
		})
	}
}

// A renewal is noted before it is answered, and what could not be noted is not answered: its client
// would rely on it.
func TestARenewalIsNotedBeforeItIsAnswered(t *testing.T) {
	t.Parallel()
	dir := privateDir(t)
	n := openNode(t, dir)
	c := client(t, n)
	lease, err := c.Grant(t.Context(), 600)
	if err != nil {
		t.Fatal(err)
	}
	h := &renewals{slot: map[int64]int{}}
	noted := func() time.Duration {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(dir, renewalsName))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(b[:renewalsHead]), "raft term ")
		digits, _, _ := strings.Cut(rest, "\n")
		term, err := strconv.ParseUint(digits, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return readRenewals(filepath.Join(dir, renewalsName), sameBoot(), term+1)[int64(lease.ID)]
	}
	if noted() == 0 {
		t.Error("the grant is not noted")
	}
	for range 3 {
		before := boottime.Now()
		if _, err := c.KeepAliveOnce(t.Context(), lease.ID); err != nil {
			t.Fatal(err)
		}
		if at := noted(); at < before {
			t.Errorf("noted at %v, sent at %v", at, before)
		}
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	h.file = f
	f.Close() // as a disk that takes nothing
	answered := &answers{}
	if err := (&noting{answered, h}).SendMsg(&pb.LeaseKeepAliveResponse{ID: 1, TTL: 1}); err == nil || answered.n != 0 {
		t.Errorf("answered %d times, %v", answered.n, err)
	}
	grant := func(context.Context, any) (any, error) { return &pb.LeaseGrantResponse{ID: 1, TTL: 1}, nil }
	if _, err := h.granted(t.Context(), nil, nil, grant); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a grant that is not noted: %v", err)
	}
}

// answers counts what is sent.
type answers struct {
	grpc.ServerStream
	n int
}

func (a *answers) SendMsg(any) error { a.n++; return nil }

// Where there is no room, nothing is known of the lease that was renewed the longest ago.
func TestMoreLeasesThanCanBeNoted(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "f")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(append(headOf("boot", 7), make([]byte, renewalsHead-len(headOf("boot", 7)))...)); err != nil {
		t.Fatal(err)
	}
	r := &renewals{file: f, slot: map[int64]int{}}
	const more = 10
	for lease := int64(1); lease <= renewalsSlots+more; lease++ {
		if err := r.note(lease); err != nil {
			t.Fatal(err)
		}
		if err := r.note(renewalsSlots); err != nil { // always young
			t.Fatal(err)
		}
	}
	known := readRenewals(path, "boot", 8)
	if len(known) != renewalsSlots || known[renewalsSlots] == 0 || known[renewalsSlots+more] == 0 || known[1] != 0 {
		t.Errorf("%d leases are known", len(known))
	}
	for lease, at := range known {
		if i, ok := r.slot[lease]; !ok || r.times[i] != at {
			t.Errorf("lease %d is read as renewed at %v", lease, at)
		}
	}
}
