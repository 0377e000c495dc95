package etcdstore_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/servertest"
)

// TestBatchesFitTheServer: real etcd with small limits. Hundreds of claims of one call enter all
// the same, each under its own key's revision, and one that is too large is refused without harm
// to those that travelled with it.
func TestBatchesFitTheServer(t *testing.T) {
	servertest.Long(t, "race-library")
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{Args: []string{"--max-txn-ops=16", "--max-request-bytes=4096"}})
	s := open(t, srv.Endpoint())
	l := grant(t, s, "a", time.Minute)
	claims := make([]driver.Claim, 300)
	for i := range claims {
		claims[i] = driver.Claim{Name: fmt.Sprintf("n%d", i), ID: rand.Text(), Value: []byte(strings.Repeat("v", 600))}
	}
	places, err := l.Claim(soon(t), claims...)
	if err != nil || len(places) != len(claims) {
		t.Fatalf("Claim = %d places, %v", len(places), err)
	}
	for i, p := range places {
		if ln := line(t, s, p.Name); !p.Held || p.Name != claims[i].Name || ln.Holder == nil ||
			ln.Holder.Token != p.Token || len(ln.Holder.Value) != 600 {
			t.Fatalf("place %d = %+v, the line is %+v", i, p, ln)
		}
	}
	if err := l.Release(soon(t), places...); err != nil {
		t.Fatal(err)
	}
	for i := range claims {
		claims[i].ID = rand.Text()
	}
	claims[150].Value = make([]byte, 8000)
	got := make(chan error, len(claims))
	for _, c := range claims {
		go func() {
			p, err := l.Claim(soon(t), c)
			if large := len(c.Value) > 4096; large != errors.Is(err, driver.ErrRefused) || !large && (err != nil ||
				!p[0].Held) {
				err = fmt.Errorf("Claim of %q = %+v, %v", c.Name, p, err)
			} else {
				err = nil
			}
			got <- err
		}()
	}
	for range claims {
		if err := <-got; err != nil {
			t.Error(err)
		}
	}
	if ln := line(t, s, claims[150].Name); ln.Holder != nil {
		t.Errorf("a claim that was refused stands: %+v", ln.Holder)
	}
}
