package k8sstore_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/k8stest"
	"github.com/primacy-go/primacy/k8sstore"
)

// both runs a test on the real server, where there is one, and on the fake.
func both(t *testing.T, f func(t *testing.T, srv *k8stest.Server)) {
	t.Parallel()
	t.Run("server", func(t *testing.T) { f(t, shared(t)) })
	t.Run("fake", func(t *testing.T) { f(t, k8stest.StartFake(t)) })
}

// newKey returns the key of a line that nobody has used.
func newKey() string { return "line." + strings.ToLower(rand.Text()) }

func minute(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func put(t *testing.T, r k8sstore.Register, key, value, version string) (next string) {
	t.Helper()
	next, ok, err := r.Put(minute(t), key, []byte(value), version)
	if err != nil || !ok || next == version {
		t.Fatalf("Put of %s: %q, %v, %v", value, next, ok, err)
	}
	return next
}

func TestOneOfTwoWritesIsToldThatItLost(t *testing.T) {
	both(t, func(t *testing.T, srv *k8stest.Server) {
		r, key := open(t, config(srv, srv.Addr)).Register(), newKey()
		v1 := put(t, r, key, `"1"`, "")
		if _, ok, err := r.Put(minute(t), key, []byte(`"2"`), ""); ok || err != nil {
			t.Errorf("made twice: %v, %v", ok, err)
		}
		v2 := put(t, r, key, `"2"`, v1)
		if _, ok, err := r.Put(minute(t), key, []byte(`"3"`), v1); ok || err != nil {
			t.Errorf("written under an old version: %v, %v", ok, err)
		}
		if err := r.Delete(minute(t), key, v1); err != nil {
			t.Error(err)
		}
		if value, v, err := r.Get(minute(t), key); string(value) != `"2"` || v != v2 || err != nil {
			t.Errorf("%s, %s, %v, want 2 under %s", value, v, err, v2)
		}
	})
}

// An update that names no uid makes a Lease that is not there.
func TestAWriteThatWasHeldUpBringsNothingBack(t *testing.T) {
	both(t, func(t *testing.T, srv *k8stest.Server) {
		r, key := open(t, config(srv, srv.Addr)).Register(), newKey()
		v := put(t, r, key, `"1"`, "")
		if err := r.Delete(minute(t), key, v); err != nil {
			t.Fatal(err)
		}
		if _, ok, err := r.Put(minute(t), key, []byte(`"2"`), v); ok || err != nil {
			t.Errorf("it is written though its Lease is gone: %v, %v", ok, err)
		}
		if value, v, err := r.Get(minute(t), key); v != "" || err != nil {
			t.Errorf("there is %s, %s, %v", value, v, err)
		}
		put(t, r, key, `"3"`, "")
		if _, ok, err := r.Put(minute(t), key, []byte(`"4"`), v); ok || err != nil {
			t.Errorf("it is written over another Lease: %v, %v", ok, err)
		}
	})
}

// The fake answers reads that name a resourceVersion from a cache that lags, as the server may.
func TestAReadIsNoOlderThanTheWriteBefore(t *testing.T) {
	both(t, func(t *testing.T, srv *k8stest.Server) {
		r, key, version := open(t, config(srv, srv.Addr)).Register(), newKey(), ""
		for n := range 50 {
			version = put(t, r, key, fmt.Sprint(n), version)
			if value, v, err := r.Get(minute(t), key); string(value) != fmt.Sprint(n) || v != version || err != nil {
				t.Fatalf("read %s, %s, %v after %d, %s was written", value, v, err, n, version)
			}
		}
	})
}

func TestAWatchTellsWhatHappenedBeforeItBegan(t *testing.T) {
	both(t, func(t *testing.T, srv *k8stest.Server) {
		r, key := open(t, config(srv, srv.Addr)).Register(), newKey()
		told := func(known, value, version string) {
			t.Helper()
			got, next, err := r.Watch(minute(t), key, known)
			if string(got) != value || next != version || err != nil {
				t.Errorf("after %q: %s, %s, %v, want %s, %s", known, got, next, err, value, version)
			}
		}
		v1 := put(t, r, key, `"1"`, "")
		told("", `"1"`, v1)
		v2 := put(t, r, key, `"2"`, v1)
		told(v1, `"2"`, v2)
		if err := r.Delete(minute(t), key, v2); err != nil {
			t.Fatal(err)
		}
		told(v2, "", "")
	})
}

// The server remembers what changed for a minute or so. A watch from before that is told 410, and
// must not become a poll.
func TestAWatchFromAVersionThatIsForgottenWaits(t *testing.T) {
	t.Parallel()
	srv := k8stest.StartFake(t)
	r, key, other := open(t, config(srv, srv.Addr)).Register(), newKey(), newKey()
	v1, v := put(t, r, key, `"1"`, ""), ""
	for n := range 300 {
		v = put(t, r, other, fmt.Sprint(n), v)
	}
	told := make(chan error, 1)
	go func() {
		value, _, err := r.Watch(minute(t), key, v1)
		if err == nil && string(value) != `"2"` {
			err = errors.New("it told " + string(value))
		}
		told <- err
	}()
	for !srv.Watched() {
		select {
		case err := <-told:
			t.Fatalf("the watch did not wait: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	put(t, r, key, `"2"`, v1)
	if err := <-told; err != nil {
		t.Error(err)
	}
}

func TestAListIsOfOneKindAndHasAllPages(t *testing.T) {
	both(t, func(t *testing.T, srv *k8stest.Server) {
		c := config(srv, srv.Addr)
		c.Prefix = "p" + strings.ToLower(rand.Text())[:8]
		r := open(t, c).Register()
		const many = 501 // of which a page has 500
		if testing.Short() && srv.Real() {
			t.Skip("501 writes")
		}
		for i := range many {
			put(t, r, fmt.Sprintf("line.a%d", i), "{}", "")
		}
		put(t, r, "line.b", "{}", "")
		put(t, r, "lease.a", "{}", "")
		keys, err := r.List(minute(t), "line.a")
		if err != nil || len(keys) != many || !strings.HasPrefix(keys[0], "line.a") {
			t.Errorf("%d keys, %v", len(keys), err)
		}
	})
}

func TestWhatIsTooLargeIsRefusedBeforeItIsSent(t *testing.T) {
	t.Parallel()
	srv := k8stest.StartFake(t)
	r := open(t, config(srv, srv.Addr)).Register()
	srv.Kill()
	_, _, err := r.Put(minute(t), newKey(), []byte(strings.Repeat("x", 256<<10)), "")
	if !errors.Is(err, driver.ErrRefused) || !strings.Contains(err.Error(), "bytes") {
		t.Error(err)
	}
}

// What kubectl shows of an election and of a process.
func TestTheFieldsThatPeopleSee(t *testing.T) {
	both(t, func(t *testing.T, srv *k8stest.Server) {
		s := open(t, config(srv, srv.Addr))
		name := strings.ToLower(rand.Text())
		type shown struct {
			Metadata struct{ Annotations, Labels map[string]string }
			Spec     struct {
				HolderIdentity                         string
				LeaseDurationSeconds, LeaseTransitions int
				AcquireTime, RenewTime                 string
			}
		}
		see := func(object string) (o shown) {
			if err := json.Unmarshal(srv.Do("GET", k8stest.Leases+"/"+object, ""), &o); err != nil {
				t.Fatal(err)
			}
			return o
		}
		var tokens []string
		for i, owner := range []string{"first", "second"} {
			l, err := s.Grant(minute(t), owner, 2500*time.Millisecond)
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Renew(minute(t)); err != nil {
				t.Fatal(err)
			}
			places, err := l.Claim(minute(t), driver.Claim{Name: name, ID: owner})
			if err != nil {
				t.Fatal(err)
			}
			o := see("primacy.lease-" + l.ID()).Spec
			if o.HolderIdentity != owner || o.LeaseDurationSeconds != 3 || o.RenewTime < o.AcquireTime {
				t.Errorf("the process: %+v", o)
			}
			line := see("primacy.line-" + name)
			a := line.Metadata.Annotations
			if line.Spec.HolderIdentity != owner || line.Spec.LeaseTransitions != i || line.Spec.AcquireTime == "" ||
				line.Spec.RenewTime != "" || a["primacy-go.github.io/lease"] != "primacy.lease-"+l.ID() ||
				a["primacy-go.github.io/token"] != fmt.Sprint(places[0].Token) ||
				line.Metadata.Labels["primacy-go.github.io/kind"] != "line" {
				t.Errorf("the election: %+v", line)
			}
			tokens = append(tokens, a["primacy-go.github.io/token"])
			if err := l.Close(minute(t)); err != nil {
				t.Fatal(err)
			}
			if o := see("primacy.line-" + name).Spec; o.HolderIdentity != "" {
				t.Errorf("nobody leads: %+v", o)
			}
		}
		if tokens[0] == tokens[1] {
			t.Errorf("tokens %v", tokens)
		}
	})
}

// The annotations lie open to everybody who may edit Leases. What only people read of them must not
// make a name unreadable: its leader would end, and nobody could follow it.
func TestAnEditedAnnotationEndsNothing(t *testing.T) {
	both(t, func(t *testing.T, srv *k8stest.Server) {
		s, name := open(t, config(srv, srv.Addr)), strings.ToLower(rand.Text())
		l, err := s.Grant(minute(t), "first", 4*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Claim(minute(t), driver.Claim{Name: name, ID: "first"}); err != nil {
			t.Fatal(err)
		}
		object := k8stest.Leases + "/primacy.line-" + name
		var o map[string]any
		if err := json.Unmarshal(srv.Do("GET", object, ""), &o); err != nil {
			t.Fatal(err)
		}
		o["metadata"].(map[string]any)["annotations"].(map[string]any)["primacy-go.github.io/token"] = "a|b||"
		edited, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		srv.Do("PUT", object, string(edited))
		if err := l.Close(minute(t)); err != nil {
			t.Error(err)
		}
		next, err := s.Grant(minute(t), "second", 4*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		places, err := next.Claim(minute(t), driver.Claim{Name: name, ID: "second"})
		if err != nil || len(places) != 1 {
			t.Errorf("the next has %v, %v", places, err)
		}
	})
}

// Whoever leads by a Lease that is deleted hears of it, or he leads on beside the next one: both
// renew the Leases of their processes, which stay.
func TestADeletedLineEndsItsLeader(t *testing.T) {
	both(t, func(t *testing.T, srv *k8stest.Server) {
		s, name := open(t, config(srv, srv.Addr)), strings.ToLower(rand.Text())
		first, err := s.Grant(minute(t), "first", time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{"1", "2"} {
			places, err := first.Claim(minute(t), driver.Claim{Name: name, ID: id})
			if err != nil {
				t.Fatal(err)
			}
			if id == "1" {
				err = first.Release(minute(t), places...)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		told := make(chan []driver.News, 1)
		go func() {
			news, _ := first.News(minute(t))
			told <- news
		}()
		srv.Do("DELETE", k8stest.Leases+"/primacy.line-"+name, "")
		next, err := s.Grant(minute(t), "second", time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := next.Claim(minute(t), driver.Claim{Name: name, ID: "3"}); err != nil {
			t.Fatal(err)
		}
		select {
		case news := <-told:
			if len(news) != 1 || !news[0].Gone || news[0].Place.ID != "2" {
				t.Errorf("the first was told %+v", news)
			}
		case <-time.After(20 * time.Second):
			t.Error("20 s later the first leads beside the second")
		}
	})
}
