package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/primacy-go/primacy/driver"
)

// version asks a member that answers for its version.
func (s *Store) version(ctx context.Context) (string, error) {
	var resp *pb.StatusResponse
	_, err := s.call(ctx, "status", func(ctx context.Context, conn *grpc.ClientConn, opts ...grpc.CallOption) (err error) {
		resp, err = pb.NewMaintenanceClient(conn).Status(ctx, &pb.StatusRequest{}, opts...)
		return err
	})
	if errors.Is(err, driver.ErrRefused) {
		return "", err
	}
	if err != nil {
		return "", fmt.Errorf("no member of %s answers: %w", s.ring.endpoints(), err)
	}
	s.cluster = resp.Header.ClusterId
	s.term.Store(resp.Header.RaftTerm)
	return resp.Version, nil
}

// same notes an answer's raft term. It returns an error if an answer comes from another cluster than the one the store began with: endpoints of two
// clusters were mixed up, or the cluster was restored from a backup under us. Each of the two could have a leader.
func (s *Store) same(h *pb.ResponseHeader) error {
	if h.GetClusterId() == s.cluster {
		s.saw(h.GetRaftTerm())
		return nil
	}
	return fmt.Errorf("answers for cluster %x, but the store was opened on cluster %x: mend the endpoints, or start again after a restore",
		h.GetClusterId(), s.cluster)
}

// fixed holds, for each minor version of etcd 3, the first patch whose linearizable reads are never stale.
var fixed = map[int]int{4: 42, 5: 28, 6: 9}

// deletesTold holds the first patches whose watches tell of every deletion, whatever is compacted.
var deletesTold = map[int]int{4: 36, 5: 18, 6: 0}

// stale reports whether linearizable reads of a server can show old state after its process was paused (etcd issue 20418).
func stale(version string) bool { return older(version, fixed) }

// older reports whether a version is before the patch of its minor version that put something right; those from 3.7 on have it all. A version that cannot
// be read counts as old.
func older(version string, right map[int]int) bool {
	core, _, _ := strings.Cut(version, "-")
	part := strings.Split(core, ".")
	if len(part) != 3 {
		return true
	}
	major, err1 := strconv.Atoi(part[0])
	minor, err2 := strconv.Atoi(part[1])
	patch, err3 := strconv.Atoi(part[2])
	if err1 != nil || err2 != nil || err3 != nil || major < 3 || major == 3 && minor < 4 {
		return true
	}
	return major == 3 && minor < 7 && patch < right[minor]
}

// capsOf says what a server of this version can do.
func capsOf(version string, refuseOld bool) (driver.Caps, error) {
	c := driver.Caps{
		Store: "etcd " + version, FIFO: true, Token: driver.TokenDurable, Push: true, ExpiryPush: true,
		SharedRenewal: true, Shared: true, Linearizable: true, MinTTL: minTTL, MaxTTL: maxTTL,
	}
	if !stale(version) {
		return c, nil
	}
	why := "etcd " + version + " can show old state after a pause of a server process (etcd issue 20418), and then two may lead:" +
		" use 3.4.42, 3.5.28, 3.6.9, 3.7.0 or newer"
	if older(version, deletesTold) {
		why += "; it can also keep the end of a claim from those who watch it when it compacts its history (issues 18089, 19179)," +
			" who then hear of it some seconds late"
	}
	if refuseOld {
		return c, fmt.Errorf("%w: %s", driver.ErrRefused, why)
	}
	c.Warnings = append(c.Warnings, why)
	return c, nil
}

// saw notes the raft term of an answer.
func (s *Store) saw(term uint64) {
	for {
		known := s.term.Load()
		if term <= known || s.term.CompareAndSwap(known, term) {
			return
		}
	}
}
