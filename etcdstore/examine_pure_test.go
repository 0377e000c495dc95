package etcdstore

import (
	"errors"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/primacy-go/primacy/driver"
)

// What a member says of itself, and what is made of it.
func TestWhatAMemberMeans(t *testing.T) {
	const gib = 1 << 30
	status := func(change func(r *pb.StatusResponse)) memberAnswer {
		r := &pb.StatusResponse{Header: &pb.ResponseHeader{ClusterId: 7, MemberId: 1}, Version: "3.7.3", Leader: 1,
			DbSize: gib, DbSizeQuota: 2 * gib}
		change(r)
		return memberAnswer{endpoint: "h:1", resp: r}
	}
	for what, c := range map[string]struct {
		m     memberAnswer
		level driver.Level
		words string
	}{
		"well":          {status(func(*pb.StatusResponse) {}), driver.Fine, "leads"},
		"a follower":    {status(func(r *pb.StatusResponse) { r.Leader = 2 }), driver.Fine, "follows"},
		"no quota told": {status(func(r *pb.StatusResponse) { r.DbSizeQuota = 0 }), driver.Fine, "data 1 GiB"},
		"too old": {status(func(r *pb.StatusResponse) { r.Version = "3.5.27" }), driver.Failed,
			"use 3.4.42, 3.5.28"},
		"too old, 3.6": {status(func(r *pb.StatusResponse) { r.Version = "3.6.8" }), driver.Failed, "too old"},
		"no leader":    {status(func(r *pb.StatusResponse) { r.Leader = 0 }), driver.Failed, "knows no leader"},
		"another cluster": {status(func(r *pb.StatusResponse) { r.Header.ClusterId = 8 }), driver.Failed,
			"belongs to cluster 8, not 7"},
		"a learner": {status(func(r *pb.StatusResponse) { r.IsLearner, r.Leader = true, 2 }), driver.Warning,
			"promote it"},
		"nearly full": {status(func(r *pb.StatusResponse) { r.DbSize = 2*gib - 1 }), driver.Warning, "nearly full"},
		"old and a learner": {status(func(r *pb.StatusResponse) { r.Version, r.IsLearner = "3.4.1", true }),
			driver.Failed,
			"3.7.0 or newer; promote it"},
		"down": {memberAnswer{endpoint: "h:1", err: errors.New("connection refused")}, driver.Warning,
			"does not answer: connection refused"},
	} {
		f := memberFinding(c.m, 7)
		if f.Topic != "member h:1" || f.Level != c.level || !strings.Contains(f.Found+" "+f.Advice, c.words) ||
			(f.Level == driver.Fine) != (f.Advice == "") {
			t.Errorf("%s: %+v, want %s with %q", what, f, c.level, c.words)
		}
	}
}
