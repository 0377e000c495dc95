package etcdapi

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	epb "go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"

	"github.com/primacy-go/primacy/internal/etcdtest"
)

// said is a row of answers.
type said []string

func (s *said) add(format string, args ...any) { *s = append(*s, fmt.Sprintf(format, args...)) }

// standsNoMore returns when nobody stands under a lease: a call that was given up leaves the line a
// moment later.
func (c *client) standsNoMore(lease int64) {
	c.Helper()
	eventually(c, time.Minute, "nobody stands under the lease", func() bool {
		a, err := c.LeaseTimeToLive(c.ctx(time.Minute), &pb.LeaseTimeToLiveRequest{ID: lease, Keys: true})
		return err == nil && len(a.Keys) == 0
	})
}

// scripts are calls whose answers must be those of etcd.
var scripts = []struct {
	name string
	play func(c *client, name string, s *said)
	want said
}{
	{"campaign", func(c *client, name string, s *said) {
		a, b := c.grant(5), c.grant(5)
		k := c.win(a, name, "one")
		s.add("%v %v %v", string(k.Key) == name+"/"+hex(a), string(k.Name) == name, k.Lease == a)
		again := c.win(a, name, "one")
		s.add("%v %s", again.Rev == k.Rev, c.leader(name))
		other := c.win(a, name, "two")
		s.add("%v %s", other.Rev == k.Rev, c.leader(name))
		_, err := c.try(b, name, "three", 300*time.Millisecond)
		s.add("%s", told(err))
		s.add("%s", told(c.resign(k)))
		eventually(c, time.Minute, "who gave up has left the line", func() bool { return c.leader(name) != "three" })
		s.add("%s", c.leader(name))
		s.add("%v", c.win(b, name, "four").Rev > k.Rev)
		s.add("%s", c.leader(name))
	}, said{"true true true", "true one", "true two", "DeadlineExceeded", "ok", "Unknown: election: no leader",
		"true", "four"}},

	{"who holds no more", func(c *client, name string, s *said) {
		a, b := c.grant(5), c.grant(5)
		k := c.win(a, name, "one")
		s.add("%s", told(c.proclaim(k, "two")))
		wrong := &epb.LeaderKey{Name: k.Name, Key: k.Key, Rev: k.Rev - 1, Lease: k.Lease}
		s.add("%s; %s; %s", told(c.proclaim(wrong, "x")), told(c.resign(wrong)), c.leader(name))
		s.add("%s; %s", told(c.resign(k)), told(c.resign(k)))
		s.add("%s", told(c.proclaim(k, "three")))
		k2 := c.win(a, name, "four")
		s.add("%s; %s", told(c.resign(k)), c.leader(name)) // a late one hurts no later term
		s.add("%v", k2.Rev > k.Rev)
		_, err := c.LeaseRevoke(c.ctx(time.Minute), &pb.LeaseRevokeRequest{ID: a})
		s.add("%s; %s", told(err), c.leader(name))
		s.add("%s; %s", told(c.proclaim(k2, "x")), told(c.resign(k2)))
		_, err = c.try(a, name, "five", time.Minute)
		s.add("%s", told(err))
		c.win(b, name, "six")
		_, err = c.Resign(c.ctx(time.Minute), &epb.ResignRequest{})
		_, err2 := c.Proclaim(c.ctx(time.Minute), &epb.ProclaimRequest{})
		s.add("%s; %s", told(err), told(err2))
	}, said{"ok", "Unknown: election: not leader; ok; two", "ok; ok", "Unknown: election: not leader", "ok; four",
		"true",
		"ok; Unknown: election: no leader", "Unknown: election: not leader; ok",
		"NotFound: etcdserver: requested lease not found",
		`Unknown: "leader" field must be provided; Unknown: "leader" field must be provided`}},

	{"locks", func(c *client, name string, s *said) {
		a, b := c.grant(5), c.grant(5)
		key, err := c.lock(a, name, time.Minute)
		s.add("%v %s", key == name+"/"+hex(a), told(err))
		again, err := c.lock(a, name, time.Minute)
		s.add("%v %s %q", again == key, told(err), c.leader(name))
		_, err = c.lock(b, name, 300*time.Millisecond)
		s.add("%s", told(err))
		// etcd deletes the key of a call that was given up some time later, also if the next call
		// has it by then
		c.standsNoMore(b)
		next := make(chan string, 1)
		go func() {
			key, err := c.lock(b, name, time.Minute)
			next <- fmt.Sprintf("%v %s", key == name+"/"+hex(b), told(err))
		}()
		time.Sleep(200 * time.Millisecond)
		s.add("%s; %s", told(c.unlock(key)), <-next)
		s.add("%s; %q", told(c.unlock(key)), c.leader(name)) // whose it is no more
		s.add("%s; %s", told(c.unlock(name+"/beef")), told(c.unlock("")))
		s.add("%s", told(c.unlock(name+"/"+hex(b))))
		s.add("%s", c.leader(name))
		_, err = c.lock(12345, name, time.Minute)
		s.add("%s", told(err))
	}, said{"true ok", `true ok ""`, "DeadlineExceeded", "ok; true ok", `ok; ""`,
		"ok; InvalidArgument: etcdserver: key is not provided", "ok",
		"Unknown: election: no leader", "NotFound: etcdserver: requested lease not found"}},

	{"leases", func(c *client, name string, s *said) {
		a := c.once(150)
		ask := func(id int64) *pb.LeaseTimeToLiveResponse {
			a, err := c.LeaseTimeToLive(c.ctx(time.Minute), &pb.LeaseTimeToLiveRequest{ID: id, Keys: true})
			if err != nil {
				c.Fatal(err)
			}
			return a
		}
		k := c.win(a, name, "x")
		s.add("%d %v %v", ask(a).GrantedTTL, ask(a).TTL >= 120,
			len(ask(a).Keys) == 1 && string(ask(a).Keys[0]) == string(k.Key))
		s.add("%d %d", ask(777).TTL, ask(777).GrantedTTL)
		s.add("%d %d", c.beat(a), c.beat(777))
		_, err := c.LeaseGrant(c.ctx(time.Minute), &pb.LeaseGrantRequest{ID: a, TTL: 5})
		_, err2 := c.LeaseGrant(c.ctx(time.Minute), &pb.LeaseGrantRequest{TTL: 9_000_000_001})
		_, err3 := c.LeaseRevoke(c.ctx(time.Minute), &pb.LeaseRevokeRequest{ID: 777})
		s.add("%s; %s; %s", told(err), told(err2), told(err3))
		small, err := c.LeaseGrant(c.ctx(time.Minute), &pb.LeaseGrantRequest{ID: a + 1, TTL: 1})
		s.add("%v %v %s", small.GetID() == a+1, small.GetTTL(), told(err))
		all, err := c.LeaseLeases(c.ctx(time.Minute), &pb.LeaseLeasesRequest{})
		found := 0
		for _, l := range all.GetLeases() {
			if l.ID == a || l.ID == a+1 {
				found++
			}
		}
		s.add("%d %s", found, told(err))
		own := c.win(0, name+"own", "x")
		s.add("%d", ask(own.Lease).GrantedTTL)
		_, err = c.LeaseRevoke(c.ctx(time.Minute), &pb.LeaseRevokeRequest{ID: own.Lease})
		s.add("%s; %s; %d", told(err), c.leader(name+"own"), c.beat(own.Lease))
		_, err = c.LeaseRevoke(c.ctx(time.Minute), &pb.LeaseRevokeRequest{ID: a})
		s.add("%s", told(err))
	}, said{"150 true true", "-1 0", "150 0",
		"FailedPrecondition: etcdserver: lease already exists; OutOfRange: etcdserver: too large lease TTL; " +
			"NotFound: etcdserver: requested lease not found", "true 2 ok", "2 ok", "60",
		"ok; Unknown: election: no leader; 0", "ok"}},

	{"observe", func(c *client, name string, s *said) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		stream, err := c.Observe(ctx, &epb.LeaderRequest{Name: []byte(name)})
		if err != nil {
			c.Fatal(err)
		}
		next := func() {
			a, err := stream.Recv()
			if err != nil {
				s.add("%s", told(err))
				return
			}
			s.add("%s %v %v", a.Kv.Value, strings.HasPrefix(string(a.Kv.Key), name+"/"),
				a.Kv.CreateRevision <= a.Kv.ModRevision && a.Kv.CreateRevision > 0)
		}
		time.Sleep(100 * time.Millisecond) // it stands before there is a leader
		a, b := c.grant(5), c.grant(5)
		k := c.win(a, name, "one")
		next()
		_ = c.proclaim(k, "two")
		next()
		_ = c.resign(k)
		c.win(b, name, "three")
		next()
	}, said{"one true true", "two true true", "three true true"}},

	{"silence", func(c *client, name string, s *said) {
		a, b := c.once(4), c.grant(5)
		k := c.win(a, name, "one")
		s.add("%d", c.beat(a))
		from := time.Now() // before this the answer had come
		rev := c.win(b, name, "two").Rev
		took := time.Since(from)
		s.add("%v %v %v", rev > k.Rev, took >= 3800*time.Millisecond, took < 30*time.Second)
		s.add("%d; %s", c.beat(a), told(c.proclaim(k, "x")))
	}, said{"4", "true true true", "0; Unknown: election: not leader"}},
}

var codeless = strings.NewReplacer("Unknown: etcdserver: key", "InvalidArgument: etcdserver: key",
	"Unknown: etcdserver: requested", "NotFound: etcdserver: requested")

// TestTheSameAnswersAsEtcd plays every script against a real etcd server and against ours.
func TestTheSameAnswersAsEtcd(t *testing.T) {
	t.Parallel()
	servers := map[string]func(*testing.T) *client{
		"etcd": func(t *testing.T) *client { return newClient(t, etcdtest.Start(t, etcdtest.Options{}).Addr(), nil) },
		"ours": func(t *testing.T) *client { c, _ := ours(t); return c },
	}
	for kind, start := range servers {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			all := start(t)
			for i, sc := range scripts {
				t.Run(sc.name, func(t *testing.T) {
					t.Parallel()
					c := *all
					c.TB = t
					var got said
					sc.play(&c, fmt.Sprintf("script/%d", i), &got)
					if kind == "etcd" { // in these it loses the codes of its own errors
						got = strings.Split(codeless.Replace(strings.Join(got, "\n")), "\n")
					}
					for j := range max(len(got), len(sc.want)) {
						g, w := append(got, make(said, len(sc.want))...)[j], append(sc.want, make(said, len(got))...)[j]
						if g != w {
							t.Errorf("answer %d:\n got %s\nwant %s", j+1, g, w)
						}
					}
				})
			}
		})
	}
}
