package embedded

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"google.golang.org/grpc"

	"github.com/primacy-go/primacy/internal/boottime"
)

// renewals is the file that says when each lease was renewed last.
//
// A new host's etcd starts every lease's TTL afresh, since its own data tells of no renewal. Where
// hosts live for less than a TTL, as `primacy lock -n` does, the lease of a dead process would
// never end by that. With the file a host ends at its start what its predecessor would have ended
// by now.
//
// A lease must never be ended too early. So a renewal is answered only after it was noted, and a
// lease of which nothing is noted has its TTL afresh. The page cache keeps what was noted when the
// host is killed; when the machine loses it, boot has changed, and the file is not read. Nor is it
// where another host has been in between, which may not have known of it (an older program): each
// start of etcd begins the next raft term.
type renewals struct {
	mu    sync.Mutex
	file  *os.File      // nil: nothing is noted, and no later host takes anything for known
	slot  map[int64]int // by lease
	times []time.Duration
}

const (
	renewalsName  = "primacy.leases"
	renewalsHead  = 256 // bytes
	renewalsSlots = 1024
	slotBytes     = 24 // lease, time, checksum, nothing
)

// sameBoot names the boot, of which two readings of the boot clock are comparable. It is empty
// where the system does not tell, and in a time namespace of a container, which may have shifted
// its clock: such a one has no name, since the kernel gives its number to another one later.
func sameBoot() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	of, err := os.Readlink("/proc/self/ns/time")
	if err == nil && of != initialTime || err != nil && !errors.Is(err, os.ErrNotExist) {
		return "" // a kernel before 5.6 has no time namespaces
	}
	return strings.TrimSpace(string(id))
}

// initialTime is the kernel's first time namespace (PROC_TIME_INIT_INO): no clock is shifted there.
const initialTime = "time:[4026531834]"

func headOf(boot string, term uint64) []byte {
	return fmt.Appendf(nil, "primacy leases 1\n%s\nraft term %d\n", boot, term)
}

func slotOf(lease int64, at time.Duration) []byte {
	b := make([]byte, slotBytes)
	binary.LittleEndian.PutUint64(b, uint64(lease))
	binary.LittleEndian.PutUint64(b[8:], uint64(at))
	binary.LittleEndian.PutUint32(b[16:], crc32.ChecksumIEEE(b[:16]))
	return b
}

// readRenewals returns what the host of the raft term before noted in this boot, nil if nothing.
func readRenewals(path, boot string, term uint64) map[int64]time.Duration {
	b, err := os.ReadFile(path)
	if err != nil || boot == "" || len(b) < renewalsHead ||
		!bytes.Equal(bytes.TrimRight(b[:renewalsHead], "\x00"), headOf(boot, term-1)) {
		return nil
	}
	known := map[int64]time.Duration{}
	for b = b[renewalsHead:]; len(b) >= slotBytes; b = b[slotBytes:] {
		lease, at := int64(binary.LittleEndian.Uint64(b)), time.Duration(binary.LittleEndian.Uint64(b[8:]))
		if lease != 0 && bytes.Equal(b[:slotBytes], slotOf(lease, at)) {
			known[lease] = max(known[lease], at) // a failed write may have left an older note of it
		}
	}
	return known
}

// openRenewals ends the leases that are over, and begins the file of this host. Nobody is served
// yet. Where there is no room for a file, that of the host before stays, which no later host reads.
func openRenewals(ctx context.Context, d *dir, s *etcdserver.EtcdServer) (*renewals, error) {
	boot, term := sameBoot(), s.Term()
	kept := endOver(ctx, s, readRenewals(d.path(renewalsName), boot, term))
	r := &renewals{slot: map[int64]int{}}
	text := append(headOf(boot, term), make([]byte, renewalsHead+renewalsSlots*slotBytes)...)
	text = text[:renewalsHead+renewalsSlots*slotBytes] // whole, so that the disk has room for each later note
	for lease, at := range kept {
		copy(text[renewalsHead+len(r.times)*slotBytes:], slotOf(lease, at))
		r.slot[lease] = len(r.times)
		r.times = append(r.times, at)
	}
	unborn := d.path(renewalsName + ".new")
	f, err := os.OpenFile(unborn, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return r, nil
	}
	if _, err = f.Write(text); err != nil {
		f.Close()
		return r, os.Remove(unborn)
	}
	if err := os.Rename(unborn, d.path(renewalsName)); err != nil {
		f.Close()
		return nil, err
	}
	r.file = f
	return r, nil
}

// endOver ends the leases that were renewed last longer than their TTL ago, and returns the others
// of which a renewal is known.
func endOver(ctx context.Context, s *etcdserver.EtcdServer, known map[int64]time.Duration) map[int64]time.Duration {
	if len(known) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.Cfg.ReqTimeout())
	defer cancel()
	all, err := s.LeaseLeases(ctx, &pb.LeaseLeasesRequest{})
	if err != nil {
		return nil
	}
	kept := map[int64]time.Duration{}
	var ends sync.WaitGroup
	defer ends.Wait()
	for _, l := range all.Leases {
		at, ok := known[l.ID]
		if !ok {
			continue
		}
		is, err := s.LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: l.ID})
		if err == nil && boottime.Now()-at >= time.Duration(is.GrantedTTL)*time.Second {
			// An error: the lease has its TTL afresh.
			ends.Go(func() { _, _ = s.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: l.ID}) })
			continue
		}
		kept[l.ID] = at
	}
	return kept
}

// note says that a lease is renewed. It must come before the answer, and the answer must not come
// after an error.
func (r *renewals) note(lease int64) error {
	if r.file == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	at := boottime.Now()
	i, ok := r.slot[lease]
	if !ok {
		i = r.room()
		r.slot[lease] = i
	}
	r.times[i] = at
	_, err := r.file.WriteAt(slotOf(lease, at), renewalsHead+int64(i)*slotBytes)
	return err
}

// room returns a free slot, or that of the lease that was renewed the longest ago: of that nothing
// is known then. The caller holds mu.
func (r *renewals) room() int {
	if len(r.times) < renewalsSlots {
		r.times = append(r.times, 0)
		return len(r.times) - 1
	}
	var oldest int64
	for lease, i := range r.slot {
		if oldest == 0 || r.times[i] < r.times[r.slot[oldest]] {
			oldest = lease
		}
	}
	i := r.slot[oldest]
	delete(r.slot, oldest)
	return i
}

func (r *renewals) close() {
	if r.file != nil {
		r.file.Close()
	}
}

// granted notes the leases that are granted.
func (r *renewals) granted(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	answer, err := next(ctx, req)
	if g, ok := answer.(*pb.LeaseGrantResponse); ok && err == nil {
		err = r.note(g.ID)
	}
	return answer, err
}

// renewed notes the leases that are renewed.
func (r *renewals) renewed(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	return next(srv, &noting{s, r})
}

// noting is a stream whose answers are noted first.
type noting struct {
	grpc.ServerStream
	r *renewals
}

func (n *noting) SendMsg(m any) error {
	if k, ok := m.(*pb.LeaseKeepAliveResponse); ok && k.TTL > 0 {
		if err := n.r.note(k.ID); err != nil {
			return err
		}
	}
	return n.ServerStream.SendMsg(m)
}
