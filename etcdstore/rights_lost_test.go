package etcdstore_test

import (
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/etcdstore"
)

// TestAHolderWithoutRightsIsDeposed: a user loses the rights to a name that its session holds since
// it was told so, and then an operator removes the claim. News tells that it is gone: without that
// the session goes on leading beside the next one.
func TestAHolderWithoutRightsIsDeposed(t *testing.T) {
	t.Parallel()
	srv := guarded(t, 1).Members[0]
	admin, err := clientv3.New(clientv3.Config{Endpoints: []string{srv.Addr()}, Username: "root", Password: "secret",
		Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	step := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	step(admin.RoleAdd(soon(t), "clerk"))
	for _, dir := range []string{"@session/", "a/"} {
		step(admin.RoleGrantPermission(soon(t), "clerk", "primacy/"+dir, clientv3.GetPrefixRangeEnd("primacy/"+dir),
			clientv3.PermissionType(clientv3.PermReadWrite)))
	}
	step(admin.UserAdd(soon(t), "clerk", "secret"))
	step(admin.UserGrantRole(soon(t), "clerk", "clerk"))
	at := func(user string) *etcdstore.Store {
		return openAt(t, etcdstore.Config{Endpoints: []string{srv.Addr()}, Username: user, Password: "secret"})
	}
	runner, clerk := at("runner"), at("clerk")
	defer runner.Close()
	defer clerk.Close()
	holder, l := grant(t, runner, "holder", time.Minute), grant(t, clerk, "clerk", time.Minute)
	held, p := claim(t, holder, "a"), claim(t, l, "a")
	told := make(chan driver.News, 10)
	go func() {
		for ctx := within(t, time.Minute); ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
			news, err := l.News(ctx)
			if err != nil {
				t.Log(err)
			}
			for _, n := range news {
				told <- n
			}
		}
	}()
	l.Follow(p)
	time.Sleep(time.Second) // its line is watched
	release(t, holder, held)
	if n := <-told; !n.Held {
		t.Fatalf("news = %+v, want it held", n)
	}
	step(admin.RoleRevokePermission(soon(t), "clerk", "primacy/a/", clientv3.GetPrefixRangeEnd("primacy/a/")))
	time.Sleep(10 * time.Second) // News checks meanwhile
	step(admin.Delete(soon(t), "primacy/a/"+l.ID()))
	for end := time.After(15 * time.Second); ; {
		select {
		case n := <-told:
			t.Logf("held %v gone %v refused %v", n.Held, n.Gone, n.Refused)
			if n.Gone {
				return
			}
		case <-end:
			t.Fatal("the claim was removed, the lease lives, and its owner is not told")
		}
	}
}
