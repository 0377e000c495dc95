package embedded

import (
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver"
)

// healEvery is how often a host looks whether its data is full.
const healEvery = 2 * time.Second

// keepSmall drops old revisions at once: etcd does so every 5 min, which a host that never lives
// that long does not see, and the data of a thousand short runs would only ever grow. Then it heals
// the store whenever it is full, until etcd stops.
func keepSmall(s *etcdserver.EtcdServer) {
	compact(s, keepRevisions)
	tick := time.NewTicker(healEvery)
	defer tick.Stop()
	for {
		// etcd raises the alarm at the first write after the one that filled it, so once at the
		// start is not enough.
		if len(s.Alarms()) > 0 {
			heal(s)
		}
		select {
		case <-tick.C:
		case <-s.StoppingNotify():
			return
		}
	}
}

// compact forgets all but the last keep revisions. It returns when they are gone from the data.
func compact(s *etcdserver.EtcdServer, keep int64) {
	ctx, cancel := context.WithTimeout(context.Background(), s.Cfg.ReqTimeout())
	defer cancel()
	if rev := s.KV().Rev() - keep; rev > 1 {
		s.Compact(ctx, &pb.CompactionRequest{Revision: rev, Physical: true}) // an error: compacted before, or stopping
	}
}

// heal frees all the space that can be freed, and lets writes in again. etcd refuses them for ever,
// also after a restart, and from outside nobody would come to help: its usual tools know nothing of
// this socket.
func heal(s *etcdserver.EtcdServer) {
	compact(s, 0)
	if s.Backend().Defrag() != nil || s.Backend().Size() > s.Cfg.QuotaBackendBytes {
		return // what is left is in use
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.Cfg.ReqTimeout())
	defer cancel()
	for _, a := range s.Alarms() {
		if a.Alarm == pb.AlarmType_NOSPACE {
			s.Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, MemberID: a.MemberID, Alarm: a.Alarm})
		}
	}
}
