package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/etcdwire"
)

// memberAnswer is what one endpoint said.
type memberAnswer struct {
	endpoint string
	resp     *pb.StatusResponse
	took     time.Duration
	err      error
}

// Examine implements [driver.Store].
func (s *Store) Examine(ctx context.Context, name string) []driver.Finding {
	all := s.askAll(ctx)
	var out []driver.Finding
	answers := 0
	for _, m := range all {
		out = append(out, memberFinding(m, s.wire.Cluster()))
		if m.err == nil {
			answers++
		}
	}
	if answers == 0 { // to ask on would take a minute
		return append(out, driver.Finding{Topic: "cluster", Level: driver.Failed, Found: "no member answers",
			Advice: "start etcd, or look at the network"})
	}
	out = append(out, s.clusterOf(ctx, all), s.alarms(ctx))
	return append(out, s.permissions(ctx, name)...)
}

// askAll asks every endpoint at the same time, each on a connection of its own: the store's calls
// go to one only.
func (s *Store) askAll(ctx context.Context) []memberAnswer {
	eps := s.wire.Client().Endpoints()
	all := make([]memberAnswer, len(eps))
	var wg sync.WaitGroup
	for i, ep := range eps {
		wg.Go(func() { all[i] = s.ask(ctx, ep) })
	}
	wg.Wait()
	return all
}

// ask asks one endpoint twice: the first answer pays for the connection.
func (s *Store) ask(ctx context.Context, endpoint string) memberAnswer {
	m := memberAnswer{endpoint: etcdwire.HostOf(endpoint)}
	ctx, cancel := context.WithTimeout(ctx, etcdwire.CallLimit)
	defer cancel()
	conn, err := s.wire.Client().Dial(endpoint)
	if err != nil {
		m.err = err
		return m
	}
	defer conn.Close()
	for range 2 {
		begun := boottime.Now()
		if m.resp, m.err = pb.NewMaintenanceClient(conn).Status(ctx, &pb.StatusRequest{}); m.err != nil {
			return m
		}
		m.took = boottime.Now() - begun
	}
	return m
}

func memberFinding(m memberAnswer, cluster uint64) driver.Finding {
	f := driver.Finding{Topic: "member " + m.endpoint, Level: driver.Fine}
	if m.err != nil {
		f.Level, f.Found, f.Advice = driver.Warning, "does not answer: "+plainly(m.err),
			"start it, or take it out of the store URL"
		return f
	}
	r := m.resp
	f.Found = fmt.Sprintf("etcd %s, %s, answers in %v, %s", r.Version, role(r), m.took.Round(10*time.Microsecond),
		space(r))
	worse := func(l driver.Level, found, advice string) {
		if f.Level != driver.Failed {
			f.Level = l
		}
		f.Found += "; " + found
		f.Advice = strings.TrimPrefix(f.Advice+"; "+advice, "; ")
	}
	if etcdwire.Stale(r.Version) {
		worse(driver.Failed,
			"too old: after a pause of its process it may show old state (etcd issue 20418), and then two may lead",
			"use 3.4.42, 3.5.28, 3.6.9, 3.7.0 or newer")
	}
	if r.Header.GetClusterId() != cluster {
		worse(driver.Failed, fmt.Sprintf("belongs to cluster %x, not %x", r.Header.GetClusterId(), cluster),
			"mend the store URL: each cluster could have a leader")
	}
	if r.Leader == 0 {
		worse(driver.Failed, "knows no leader", "it is cut off from the others, or too few of them run")
	}
	if r.IsLearner {
		worse(driver.Warning, "serves no reads or writes yet", "promote it, or take it out of the store URL")
	}
	if q := r.DbSizeQuota; q > 0 && r.DbSize > q/5*4 {
		worse(driver.Warning, "nearly full", "compact and defragment it, or raise --quota-backend-bytes")
	}
	return f
}

func role(r *pb.StatusResponse) string {
	switch {
	case r.IsLearner:
		return "a learner"
	case r.Leader == r.Header.GetMemberId():
		return "leads"
	}
	return "follows"
}

// space tells how full a member is. Etcd before 3.6 does not tell its quota.
func space(r *pb.StatusResponse) string {
	if r.DbSizeQuota <= 0 {
		return "data " + bytesOf(r.DbSize)
	}
	return fmt.Sprintf("data %s of %s", bytesOf(r.DbSize), bytesOf(r.DbSizeQuota))
}

func bytesOf(n int64) string {
	f, unit := float64(n), "B"
	for _, u := range []string{"KiB", "MiB", "GiB"} {
		if f < 1000 {
			break
		}
		f, unit = f/1024, u
	}
	return fmt.Sprintf("%.3g %s", f, unit)
}

// plainly says an error without gRPC's frame.
func plainly(err error) string {
	if reason := etcdwire.TLSReason(err); reason != "" {
		return "TLS: " + reason
	}
	if errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded {
		return "silent for " + etcdwire.CallLimit.String()
	}
	return etcdwire.Text(err)
}

func (s *Store) clusterOf(ctx context.Context, all []memberAnswer) driver.Finding {
	f := driver.Finding{Topic: "cluster", Level: driver.Fine}
	term, leader, terms := s.leaderOf(all)
	var resp *pb.MemberListResponse
	_, err := s.wire.Call(ctx, "member list", func(ctx context.Context, conn *grpc.ClientConn,
		opts ...grpc.CallOption) (err error) {
		resp, err = pb.NewClusterClient(conn).MemberList(ctx, &pb.MemberListRequest{}, opts...)
		return err
	})
	if err != nil {
		f.Level, f.Found, f.Advice = driver.Warning, "its members are not told: "+err.Error(),
			"ask etcd's operator how many there are"
		return f
	}
	voters, name := 0, "none known"
	var odd []string
	for _, m := range resp.Members {
		if !m.IsLearner {
			voters++
		}
		if m.ID == leader {
			name = m.Name
		}
		if m.Name == "" {
			odd = append(odd, fmt.Sprintf("member %x has not been started", m.ID))
		}
	}
	f.Found = fmt.Sprintf("%s, leader %s, raft term %d", countOf(voters, "voting member"), name, term)
	if n := len(resp.Members) - voters; n > 0 {
		f.Found += ", " + countOf(n, "learner")
	}
	if len(terms) > 1 {
		odd = append(odd, "its members differ in the raft term: it is choosing a leader")
	}
	switch {
	case voters == 1:
		f.Found += "; while it is down nobody leads"
	case voters%2 == 0:
		odd = append(odd, fmt.Sprintf("%d of them survive the loss of no more members than %d do", voters, voters-1))
	}
	if len(odd) > 0 {
		f.Level, f.Found, f.Advice = driver.Warning, f.Found+"; "+strings.Join(odd,
			"; "), "3 or 5 voting members, all started, are what etcd is made for"
	}
	return f
}

// leaderOf returns the newest raft term told, its leader, and all terms that were told.
func (s *Store) leaderOf(all []memberAnswer) (term, leader uint64, terms []uint64) {
	for _, m := range all {
		if m.err != nil || m.resp.Header.GetClusterId() != s.wire.Cluster() {
			continue
		}
		if !slices.Contains(terms, m.resp.RaftTerm) {
			terms = append(terms, m.resp.RaftTerm)
		}
		if m.resp.RaftTerm >= term && m.resp.Leader != 0 {
			term, leader = m.resp.RaftTerm, m.resp.Leader
		}
	}
	return term, leader, terms
}

func countOf(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func (s *Store) alarms(ctx context.Context) driver.Finding {
	f := driver.Finding{Topic: "alarms", Level: driver.Fine, Found: "none"}
	var resp *pb.AlarmResponse
	_, err := s.wire.Call(ctx, "alarms", func(ctx context.Context, conn *grpc.ClientConn,
		opts ...grpc.CallOption) (err error) {
		resp, err = pb.NewMaintenanceClient(conn).Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_GET}, opts...)
		return err
	})
	switch {
	case errors.Is(err, driver.ErrRefused):
		f.Found = "not told to this user"
	case err != nil:
		f.Level, f.Found, f.Advice = driver.Warning, "not told: "+err.Error(), "ask again"
	case len(resp.Alarms) > 0:
		f.Level, f.Found, f.Advice = driver.Failed, "", "etcdctl alarm list; a corrupt member must be replaced"
		for _, a := range resp.Alarms {
			f.Found += fmt.Sprintf("%s at member %x; ", a.Alarm, a.MemberID)
			if a.Alarm == pb.AlarmType_NOSPACE {
				f.Advice = "it takes no writes: etcdctl compact, defrag, then alarm disarm; " +
					"do not restart etcd's leader before: no session outlives that while etcd is full"
			}
		}
		f.Found = strings.TrimSuffix(f.Found, "; ")
	}
	return f
}

// permissions says whether a session standing for name may do what it must. The Txns never hold,
// so they write nothing: etcd asks for the permissions of both branches before it looks.
func (s *Store) permissions(ctx context.Context, name string) []driver.Finding {
	f := driver.Finding{Topic: "permissions", Level: driver.Fine}
	var denied, missed []string
	nothingWorks := false
	for _, d := range s.dirsOf(name) {
		probe := d.dir + "primacy-doctor"
		_, _, err := s.wire.Txn(ctx, "permissions", &pb.TxnRequest{
			Compare: []*pb.Compare{ifCreate(probe, -1)}, // no key has that create revision
			Success: []*pb.RequestOp{doRange(keysOnly(prefixRange(probe), 1)),
				doPut(probe, nil, 0), doDelete(probe + "-")}, // etcd refuses to put and delete one key
		})
		switch {
		case errors.Is(err, driver.ErrRefused):
			denied, missed = append(denied, d.dir), append(missed, d.without)
			nothingWorks = nothingWorks || d.without == ""
		case err != nil:
			f.Level, f.Found, f.Advice = driver.Warning, "not found out: "+err.Error(), "ask again"
			return []driver.Finding{f}
		}
	}
	if len(denied) == 0 {
		f.Found = fmt.Sprintf("may read, write and delete below %q; %s", s.prefix, s.authText(ctx))
		return []driver.Finding{f}
	}
	f.Level, f.Found = driver.Failed, fmt.Sprintf("this user may not read, write and delete below %q", denied)
	if !nothingWorks {
		f.Level, f.Found = driver.Warning, f.Found+": "+strings.Join(missed, "; ")
	}
	f.Advice = fmt.Sprintf("etcdctl role grant-permission ROLE --prefix=true readwrite %s", s.prefix)
	return []driver.Finding{f}
}

// neededDir is what some keys begin with, and what does not work for who may not write them; "":
// nothing does.
type neededDir struct{ dir, without string }

// dirsOf returns all that a session standing for name writes below.
func (s *Store) dirsOf(name string) []neededDir {
	beat := neededDir{s.prefix + beats, fmt.Sprintf("no session has a ttl below %v", minLease)}
	if s.heartbeats {
		beat.without = ""
	}
	return []neededDir{{s.lineDir(name), ""}, {s.prefix + sessions, ""}, beat,
		{s.journalsDir(), "no history is kept, and no cron job runs"},
		{s.prefix + keptKeys, "no value is kept beyond a term, and primacy postgres does not run"}}
}

func (s *Store) authText(ctx context.Context) string {
	switch on, err := asksForUsers(ctx, s.wire); {
	case err != nil:
		return "whether etcd asks for a user was not told"
	case on:
		return "etcd asks for a user"
	}
	return "etcd asks for no user"
}
