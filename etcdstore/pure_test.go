package etcdstore

import (
	"errors"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdwire"

	"testing/quick"
)

func TestEscapeHasOneSpellingForEachName(t *testing.T) {
	check := func(raw []byte) bool {
		name := string(raw)
		e := escape(name)
		back, ok := unescape(e)
		return ok && back == name && !strings.ContainsAny(e, "/@\x00\n ")
	}
	if err := quick.Check(check, &quick.Config{MaxCount: 5000}); err != nil {
		t.Error(err)
	}
	// What unescape takes, escape writes again: otherwise one name would have two lines.
	inverse := func(raw []byte) bool {
		alphabet := "ab%/@2F4fF1_."
		var s strings.Builder
		for _, c := range raw {
			s.WriteByte(alphabet[int(c)%len(alphabet)])
		}
		name, ok := unescape(s.String())
		return !ok || escape(name) == s.String()
	}
	if err := quick.Check(inverse, &quick.Config{MaxCount: 20000}); err != nil {
		t.Error(err)
	}
}

func TestNoLineHoldsTheKeysOfAnother(t *testing.T) {
	s := &Store{layout: layout{"primacy/"}}
	check := func(a, b []byte) bool {
		key, dir := s.lineDir(string(a))+hex(0x1f), s.lineDir(string(b))
		return (key >= dir && key < etcdwire.PrefixEnd(dir)) == (string(a) == string(b))
	}
	if err := quick.Check(check, &quick.Config{MaxCount: 5000}); err != nil {
		t.Error(err)
	}
	for _, pair := range [][2]string{{"a", "a/b"}, {"a", "a%2Fb"}, {"", "/"}, {"a", "A"}, {"@session", "@"}} {
		if !check([]byte(pair[0]), []byte(pair[1])) || !check([]byte(pair[1]), []byte(pair[0])) {
			t.Errorf("%q and %q share keys", pair[0], pair[1])
		}
	}
}

func TestSessionRangeEndsBeforeTheNextLease(t *testing.T) {
	s := &Store{layout: layout{"primacy/"}}
	key := s.sessionKey(0x12)
	end := sessionEnd(key)
	in := func(k string) bool { return k >= key && k < end }
	if !in(key) || !in(askKey(key, "a")) {
		t.Error("the range misses the record or a request")
	}
	if other := s.sessionKey(0x123); in(other) || in(askKey(other, "a")) {
		t.Errorf("the range holds %q, which is another lease's", other)
	}
}

func TestStaleVersions(t *testing.T) {
	for version, want := range map[string]bool{
		"3.4.41": true, "3.4.42": false, "3.5.27": true, "3.5.28": false, "3.6.8": true, "3.6.9": false, "3.7.0": false,
		"3.8.0-alpha.0": false, "4.0.0": false, "3.3.99": true, "2.3.0": true, "": true, "x.y.z": true,
	} {
		if got := etcdwire.Stale(version); got != want {
			t.Errorf("etcdwire.Stale(%q) = %v, want %v", version, got, want)
		}
	}
	if c, err := capsOf("3.5.27", false); err != nil || len(c.Warnings) != 1 {
		t.Errorf("caps of an old server = %+v, %v, want one warning", c, err)
	}
	for version, want := range map[string]bool{"3.5.17": true, "3.5.18": false, "3.4.35": true, "3.4.36": false,
		"3.3.27": true, "3.6.0": false} {
		c, _ := capsOf(version, false)
		if got := strings.Contains(strings.Join(c.Warnings, ""), "19179"); got != want {
			t.Errorf("caps of %s warn of deletions that are not told: %v, want %v", version, got, want)
		}
	}
	if _, err := capsOf("3.5.27", true); !errors.Is(err, driver.ErrRefused) {
		t.Errorf("caps of an old server with RefuseOld = %v, want ErrRefused", err)
	}
}

func TestClassify(t *testing.T) {
	for _, c := range []struct {
		code codes.Code
		msg  string
		want error
	}{
		{codes.NotFound, "etcdserver: requested lease not found", driver.ErrGone},
		{codes.PermissionDenied, "etcdserver: permission denied", driver.ErrRefused},
		{codes.InvalidArgument, "etcdserver: authentication failed, invalid user ID or password", driver.ErrRefused},
		{codes.InvalidArgument, "etcdserver: request is too large", driver.ErrRefused},
		{codes.ResourceExhausted, "grpc: received message larger than max (9 vs. 8)", driver.ErrRefused},
		{codes.ResourceExhausted, "etcdserver: too many requests", nil},
		{codes.Unavailable, "etcdserver: request timed out", nil},
		{codes.Unavailable, "etcdserver: no leader", nil},
		{codes.Unauthenticated, "etcdserver: invalid auth token", nil},
		{codes.DeadlineExceeded, "context deadline exceeded", nil},
	} {
		if got := etcdwire.Final(status.Error(c.code, c.msg)); got != c.want {
			t.Errorf("etcdwire.Final(%s) = %v, want %v", c.msg, got, c.want)
		}
	}
	wrapped := `connection error: desc = "transport: authentication handshake failed: tls: failed to verify certificate: x509: certificate has expired"`
	if got, want := etcdwire.TLSReason(status.Error(codes.Unavailable,
		wrapped)), "x509: certificate has expired"; got != want {
		t.Errorf("tlsReason = %q, want %q", got, want)
	}
}

// FuzzStanding: whatever bytes another program left under a line, it is shown and nothing breaks.
func FuzzStanding(f *testing.F) {
	f.Add("12", int64(0x12), []byte("v"), []byte(`{"owner":"a"}`))
	f.Add("zz/\xff", int64(0), []byte(nil), []byte("{"))
	f.Fuzz(func(t *testing.T, suffix string, lease int64, value, rec []byte) {
		kv := &mvccpb.KeyValue{Lease: lease, Value: value, CreateRevision: 7}
		e := entryOf(suffix, kv, ownerOf(&mvccpb.KeyValue{Value: rec}))
		if e.Token != 7 || (lease == 0) != (e.Lease == "") || string(e.Value) != string(value) {
			t.Errorf("standing = %+v", e)
		}
		if lease == 0 && e.Note == "" {
			t.Error("a claim without a lease has no note")
		}
	})
}

// FuzzRequest: a request that somebody garbled is left alone.
func FuzzRequest(f *testing.F) {
	f.Add("primacy/@session/12/ask/a", []byte(`{"token":"7","by":"x"}`))
	f.Add("primacy/@session/12/ask/%", []byte(`[]`))
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		l := newLease(build(nil, Options{Prefix: "primacy/"}), 0x12)
		id := seatID{Name: "a"}
		l.seats.by[id] = &seatState{seatID: id, claimFields: claimFields{id: "id", token: 7}}
		n, ok := l.request(&mvccpb.KeyValue{Key: []byte(key), Value: value, ModRevision: 9})
		if ok && (n.Request == nil || n.Request.Token != 7 || n.Place.Name != "a") {
			t.Errorf("request = %+v", n)
		}
	})
}
