package etcdapi

import (
	"math"
	"testing"
	"time"

	lpb "go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"

	"github.com/primacy-go/primacy"
)

// Whoever holds a lock after another has a larger token, whether it took it by etcd's call or as
// `primacy lock` does: one fence may stand behind both.
func TestTokensOfALockGrowWhoeverTookIt(t *testing.T) {
	t.Parallel()
	c, store := ours(t)
	s, err := primacy.NewSession(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context())
	var last uint64
	grows := func(by string, token uint64) {
		t.Helper()
		if token <= last {
			t.Errorf("%s: token %d after %d", by, token, last)
		}
		last = token
	}
	for range 3 {
		term, err := s.Mutex("n", nil).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		grows("a Mutex", uint64(term.Token()))
		if err := term.Resign(t.Context()); err != nil {
			t.Fatal(err)
		}
		a, err := c.Lock(c.ctx(time.Minute), &lpb.LockRequest{Name: []byte("n")})
		if err != nil {
			t.Fatal(err)
		}
		grows("etcd's Lock", uint64(a.Header.Revision))
		if err := c.unlock(string(a.Key)); err != nil {
			t.Fatal(err)
		}
	}
}

// A token that etcd's client would read as a negative number is none.
func TestATokenOfALockFitsARevision(t *testing.T) {
	const most = math.MaxInt64 >> turnBits
	for claim, ok := range map[primacy.Token]bool{1: true, most: true, most + 1: false, math.MaxUint64: false} {
		if token, fits := lockToken(claim); fits != ok || fits && int64(token) <= 0 {
			t.Errorf("%d: %d, %v", claim, token, fits)
		}
	}
}
