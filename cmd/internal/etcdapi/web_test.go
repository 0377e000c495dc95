package etcdapi

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	epb "go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/memstore"
)

func mustDial(t testing.TB, addr string) *grpc.ClientConn {
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// curl posts a body, and returns the answer with its status behind it.
func curl(t testing.TB, url, body string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath("curl"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip("curl is not installed")
	}
	out, _ := exec.Command("curl", append([]string{"-sS", "-m", "60", "-w", " %{http_code}", "-d", body, url},
		args...)...).CombinedOutput()
	return string(out)
}

func b64(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }

// TestJSON types the calls as a shell would, on etcd and on ours.
func TestJSON(t *testing.T) {
	t.Parallel()
	_, addr := serve(t, memstore.New(memstore.Options{}), Options{})
	for kind, at := range map[string]string{"ours": addr, "etcd": etcdtest.Start(t, etcdtest.Options{}).Addr()} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			url := "http://" + at + "/v3/"
			post := func(path, body string) map[string]any {
				t.Helper()
				out := curl(t, url+path, body)
				var a map[string]any
				if err := json.NewDecoder(strings.NewReader(out)).Decode(&a); err != nil {
					t.Fatalf("%s: %s", path, out)
				}
				return a
			}
			text := func(a map[string]any, path ...string) string {
				for _, p := range path[:len(path)-1] {
					a, _ = a[p].(map[string]any)
				}
				s, _ := a[path[len(path)-1]].(string)
				return s
			}
			lease := text(post("lease/grant", `{"TTL":"200"}`), "ID")
			won := post("election/campaign", `{"name":"`+b64("j")+`","lease":"`+lease+`","value":"`+b64("v1")+`"}`)
			if text(won, "leader", "lease") != lease || text(won, "leader", "rev") == "" {
				t.Fatalf("campaign: %v", won)
			}
			leader, _ := json.Marshal(won["leader"])
			if a := post("election/proclaim",
				`{"leader":`+string(leader)+`,"value":"`+b64("v2")+`"}`); a["header"] == nil {
				t.Errorf("proclaim: %v", a)
			}
			if a := post("election/leader", `{"name":"`+b64("j")+`"}`); text(a, "kv", "value") != b64("v2") ||
				text(a, "kv", "key") != text(won, "leader", "key") {
				t.Errorf("leader: %v", a)
			}
			observe := exec.Command("curl", "-sS", "-N", "-m", "60", "-d",
				`{"name":"`+b64("j")+`"}`, url+"election/observe")
			stream, err := observe.StdoutPipe()
			if err != nil || observe.Start() != nil {
				t.Fatal(err)
			}
			var seen []byte
			for buf := make([]byte, 4096); err == nil && !strings.Contains(string(seen), b64("v2")); {
				var n int
				n, err = stream.Read(buf)
				seen = append(seen, buf[:n]...)
			}
			if err != nil {
				t.Errorf("observe: %v: %s", err, seen)
			}
			_ = observe.Process.Kill()
			_ = observe.Wait()
			if a := post("lease/keepalive", `{"ID":"`+lease+`"}`); text(a, "result", "TTL") != "200" {
				t.Errorf("keepalive: %v", a)
			}
			if out := curl(t, url+"election/campaign", `{"name":"`+b64("j")+`"}`, "-m", "1"); !strings.Contains(out,
				"timed out") {
				t.Errorf("a campaign that is not won: %s", out) // its connection is closed
			}
			if a := post("election/resign", `{"leader":`+string(leader)+`}`); a["header"] == nil {
				t.Errorf("resign: %v", a)
			}
			for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
				out := curl(t, url+"election/leader", `{"name":"`+b64("j")+`"}`)
				if strings.Contains(out, "election: no leader") && strings.HasSuffix(out, " 500") {
					break
				}
				if time.Now().After(end) {
					t.Fatalf("nobody leads, and whoever closed its connection stands no more: %s", out)
				}
			}
			locked := post("lock/lock", `{"name":"`+b64("j")+`","lease":"`+lease+`"}`)
			if text(locked, "key") == "" {
				t.Errorf("lock: %v", locked)
			}
			if a := post("lock/unlock", `{"key":"`+text(locked, "key")+`"}`); a["header"] == nil {
				t.Errorf("unlock: %v", a)
			}
			if a := post("lease/revoke", `{"ID":"`+lease+`"}`); a["header"] == nil {
				t.Errorf("revoke: %v", a)
			}
			if out := curl(t, url+"election/campaign",
				`{"name":"`+b64("j")+`","lease":"`+lease+`"}`); !strings.Contains(out, "requested lease not found") {
				t.Errorf("under a revoked lease: %s", out)
			}
		})
	}
}

// TestWebPagesAreRefused plays a page on another site, and one whose name was bound to this
// machine.
func TestWebPagesAreRefused(t *testing.T) {
	t.Parallel()
	_, addr := serve(t, memstore.New(memstore.Options{}), Options{Hosts: []string{"sidecar.internal"}})
	_, port, _ := net.SplitHostPort(addr)
	url, body := "http://"+addr+"/v3/lease/grant", `{"TTL":"5"}`
	for _, c := range []struct{ want, header string }{
		{"200", "Host: localhost:" + port}, {"200", "Host: sidecar.internal"}, {"200", "Host: [::1]:" + port},
		{"421", "Host: evil.example"}, {"421", "Host: evil.example:" + port},
		{"403", "Origin: http://evil.example"}, {"403", "Sec-Fetch-Site: cross-site"},
		{"200", "Origin: http://" + addr},
	} {
		if out := curl(t, url, body, "-H", c.header); !strings.HasSuffix(out, " "+c.want) {
			t.Errorf("%s: %s; want %s", c.header, out, c.want)
		}
	}
	big := curl(t, url, `{"TTL":"5","x":"`+strings.Repeat("x", maxBody)+`"}`)
	if strings.HasSuffix(big, " 200") {
		t.Errorf("a body that is too large: %.200s", big)
	}
	for _, body := range []string{"", "{", "[]", `{"TTL":"many"}`, "\x01\xff",
		"{\"TTL\":\"5\",\"x\":\"\xff\"}", `{"TTL":"5","x":"\ud800"}`} {
		if out := curl(t, url, body); body != "" && !strings.HasSuffix(out, " 400") {
			t.Errorf("body %q: %s", body, out)
		}
	}
}

// TestTheTokenIsAskedFor has etcd's own client log in, over TLS, and use its own session and lease
// keeper.
func TestTheTokenIsAskedFor(t *testing.T) {
	t.Parallel()
	cert := etcdtest.NewCert(t, time.Now().Add(time.Hour))
	_, addr := serve(t, memstore.New(memstore.Options{}), Options{Token: "s3cret", TLS: serverTLS(t, cert)})
	plain := newClient(t, addr, credentials.NewTLS(cert.Client()))
	if _, err := plain.try(0, "x", "", time.Second); status.Code(err) != codes.Unauthenticated {
		t.Errorf("without the token: %v", err)
	}
	stream, err := plain.LeaseKeepAlive(plain.ctx(time.Second))
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Unauthenticated {
		t.Errorf("a stream without the token: %v", err)
	}
	cfg := clientv3.Config{Endpoints: []string{"https://" + addr}, TLS: cert.Client(), Username: "any",
		Password: "wrong", DialTimeout: 2 * time.Second, Logger: zap.NewNop()}
	if _, err := clientv3.New(cfg); err == nil || !strings.Contains(err.Error(), "authentication failed") {
		t.Errorf("a wrong password: %v", err)
	}
	cfg.Password = "s3cret"
	client, err := clientv3.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	session, err := concurrency.NewSession(client, concurrency.WithTTL(2))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	elections := epb.NewElectionClient(client.ActiveConnection())
	won, err := elections.Campaign(ctx, &epb.CampaignRequest{Name: []byte("x"), Lease: int64(session.Lease()),
		Value: []byte("v")})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-session.Done():
		t.Error("the session ended though it is kept alive")
	case <-time.After(3 * time.Second): // longer than the ttl
	}
	if a, err := elections.Leader(ctx, &epb.LeaderRequest{Name: []byte("x")}); err != nil ||
		a.Kv.CreateRevision != won.Leader.Rev {
		t.Errorf("leader: %v, %v", a, err)
	}
	if out := curl(t, "https://"+addr+"/v3/election/leader", `{"name":"`+b64("x")+`"}`, "-k"); !strings.HasSuffix(out,
		" 401") {
		t.Errorf("JSON without the token: %s", out)
	}
	if out := curl(t, "https://"+addr+"/v3/election/leader", `{"name":"`+b64("x")+`"}`, "-k", "-H",
		"Authorization: Bearer s3cret"); !strings.HasSuffix(out, " 200") {
		t.Errorf("JSON with the token: %s", out)
	}
	if err := session.Close(); err != nil {
		t.Error(err)
	}
	if _, err := elections.Leader(ctx, &epb.LeaderRequest{Name: []byte("x")}); err == nil {
		t.Error("it leads on after its session was closed")
	}
}

func serverTLS(t testing.TB, cert *etcdtest.Cert) *tls.Config {
	pair, err := tls.LoadX509KeyPair(cert.Files())
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}}
}

// A body that is announced and never comes keeps no connection, whether or not its sender has the
// token; who waits is not cut off.
func TestABodyThatNeverComesEndsTheConnection(t *testing.T) {
	t.Parallel()
	const token = "0123456789abcdef"
	s, err := New(memstore.New(memstore.Options{}), Options{Token: token})
	if err != nil {
		t.Fatal(err)
	}
	s.arrival = 300 * time.Millisecond
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
		<-served
	}()
	ask := func(path, headers, body string) net.Conn {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		_, _ = io.WriteString(c, "POST "+path+" HTTP/1.1\r\nHost: localhost\r\n"+headers+"\r\n"+body)
		return c
	}
	const auth, announced, endless = "Authorization: " + token + "\r\n", "Content-Length: 100\r\n",
		"Transfer-Encoding: chunked\r\n"
	never := []net.Conn{ask("/v3/lease/grant", announced, "{"), ask("/v3/lease/grant", auth+announced, "{"),
		ask("/v3/lease/keepalive", endless, ""),
		ask("/v3/lease/keepalive", auth+announced, "{"), ask("/v3/auth/authenticate", endless, "")}
	for _, lease := range []string{"1", "2"} {
		c := ask("/v3/lease/grant", auth+"Content-Length: 21\r\n", `{"ID":"`+lease+`","TTL":"60"}`)
		if text := answer(t, c); !strings.Contains(text, `"ID":"`+lease) {
			t.Fatalf("grant: %s", text)
		}
	}
	const first, second = `{"name":"bg==","lease":"1"}`, `{"name":"bg==","lease":"2"}`
	if text := answer(t, ask("/v3/election/campaign", auth+"Content-Length: 27\r\n", first)); !strings.Contains(text,
		`"leader"`) {
		t.Fatalf("campaign: %s", text)
	}
	waits := ask("/v3/election/campaign", auth+"Content-Length: 27\r\n", second)
	limit := time.Now().Add(20 * time.Second)
	for i, c := range never {
		_ = c.SetReadDeadline(limit)
		if _, err := io.ReadAll(c); err != nil {
			t.Errorf("%d: the connection stands: %v", i, err)
		}
	}
	answer(t, ask("/v3/lease/revoke", auth+"Content-Length: 10\r\n", `{"ID":"1"}`))
	if text := answer(t, waits); !strings.Contains(text, `"leader"`) {
		t.Errorf("a campaign that waited for longer: %s", text)
	}
	answer(t, ask("/v3/lease/revoke", auth+"Content-Length: 10\r\n", `{"ID":"2"}`))
}

// answer returns what is read first.
func answer(t *testing.T, c net.Conn) string {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	buf := make([]byte, 4096)
	n, err := c.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return string(buf[:n])
}
