package etcdstore

import (
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

// The client panics once etcd has entered the claim, as an interceptor may, and the application
// recovers. The claim's release must then look for what stands: it would block the line for as long
// as the lease is renewed.
func TestAReleaseAfterAPanicOfTheClient(t *testing.T) {
	addr := etcdtest.Start(t, etcdtest.Options{}).Addr()
	s, g, _ := gated(t, addr, addr)
	for _, slots := range []int{0, 2} {
		l, err := s.Grant(t.Context(), "a", time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		g.set(func() {
			g.after = func(req any) {
				if _, is := req.(*pb.TxnRequest); is {
					g.set(func() { g.after = nil })
					panic("client")
				}
			}
		})
		c := driver.Claim{Name: "n", ID: "1", Slots: slots}
		func() {
			defer func() {
				if r := recover(); r != "client" {
					t.Errorf("recovered: %v", r)
				}
			}()
			_, err := l.Claim(t.Context(), c)
			t.Errorf("Claim: %v", err)
		}()
		if ln, err := s.Line(t.Context(), "n"); err != nil || ln.Holder == nil {
			t.Fatalf("the claim does not stand: %+v, %v", ln, err)
		}
		if err := l.Release(t.Context(), driver.Place{Name: c.Name, ID: c.ID, Slots: slots}); err != nil {
			t.Errorf("Release: %v", err)
		}
		if ln, err := s.Line(t.Context(), "n"); err != nil || ln.Holder != nil {
			t.Errorf("with %d slots it stands after its release: %+v, %v", slots, ln, err)
		}
	}
}
