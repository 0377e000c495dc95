//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/servertest"
)

// side is one `primacy serve`.
type side struct {
	*prog
	socket string
	client *http.Client
}

// serve starts a server on a socket of its own and waits until it is ready.
func (w *world) serve(name string, args ...string) *side {
	w.Helper()
	socket := filepath.Join(w.dir, name, "s")
	s := sideOn(w.start(append([]string{"serve", "--id", name, "--socket", socket}, args...)...), socket)
	s.ready()
	return s
}

func sideOn(p *prog, socket string) *side {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	return &side{prog: p, socket: socket, client: &http.Client{Transport: &http.Transport{DialContext: dial,
		DisableKeepAlives: true}}}
}

func (s *side) ready() {
	s.Helper()
	s.until(func() bool { code, _ := s.ask("GET", "/readyz", ""); return code == 200 }, "is ready")
}

// ask makes one request; the status is 0 where nobody answers.
func (s *side) ask(method, path, body string, headers ...string) (int, string) {
	r, err := http.NewRequest(method, "http://localhost"+path, strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := s.client.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b)
}

// said is a line of a stream, as far as the tests look at it.
type said struct {
	Event    string `json:"event"`
	ID       string `json:"id"`
	Token    string `json:"token"`
	LeaseMS  int64  `json:"lease_ms"`
	Deadline string `json:"deadline_boot_ns"`
	Reason   string `json:"reason"`
	at       time.Duration
}

// curl is a client in a process of its own.
type curl struct {
	*world
	cmd   *exec.Cmd
	lines chan said
}

func (s *side) curl(args ...string) *curl {
	s.Helper()
	c := &curl{world: s.world, cmd: exec.Command("curl", append([]string{"-sSN", "--unix-socket", s.socket},
		args...)...), lines: make(chan said, 1000)}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		s.Fatal(err)
	}
	c.cmd.Dir = s.dir
	if err := c.cmd.Start(); err != nil {
		s.Fatalf("curl: %v", err)
	}
	go func() {
		defer close(c.lines)
		for in := bufio.NewScanner(out); in.Scan(); {
			l := said{at: boottime.Now()}
			if json.Unmarshal(in.Bytes(), &l) == nil {
				c.lines <- l
			}
		}
	}()
	s.Cleanup(func() { _ = c.cmd.Process.Kill(); _ = c.cmd.Wait() })
	return c
}

func (c *curl) next(event string) said {
	c.Helper()
	for late := time.After(limit); ; {
		select {
		case l, ok := <-c.lines:
			if !ok {
				c.Fatalf("the stream ended before %s", event)
			}
			if l.Event == event {
				return l
			}
		case <-late:
			c.Fatalf("no %s within %v", event, limit)
		}
	}
}

func (s *side) campaign(id string) *curl { return s.campaignFor("a%2Fn", id) }

func (s *side) campaignFor(name, id string) *curl {
	return s.curl("--json", fmt.Sprintf(`{"id":%q,"direct":true}`, id),
		"http://localhost/v1/elections/"+name+"/campaign")
}

// awaitWaiting waits until somebody waits behind the leader.
func (s *side) awaitWaiting(name string) {
	s.Helper()
	s.until(func() bool {
		_, text := s.ask("GET", "/v1/elections/"+strings.ReplaceAll(name, "/", "%2F"), "")
		return !strings.Contains(text, `"waiting":[]`)
	}, "shows who waits for %s", name)
}

// A client that is killed has resigned at once, whatever the ttl is.
func TestServeAKilledClientHasResigned(t *testing.T) {
	w := newWorld(t)
	a, b := w.serve("a", "--ttl", "60s"), w.serve("b", "--ttl", "60s")
	one := a.campaign("one")
	won := one.next("elected")
	two := b.campaign("two")
	a.awaitWaiting("a/n")
	for id, s := range map[string]*side{"200": a, "503": b} {
		for _, method := range []string{"GET", "HEAD", "OPTIONS"} {
			for _, path := range []string{"/leader/a/n", "/leader/a%2Fn", "/primary?election=a%2Fn",
				"/leader?election=a/n"} {
				if code, text := s.ask(method, path, ""); fmt.Sprint(code) != id {
					t.Errorf("%s: %s %s: %d %s", s.args, method, path, code, text)
				}
			}
		}
	}
	began := boottime.Now()
	if err := one.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	next := two.next("elected")
	t.Logf("the next one led %v after the kill", next.at-began)
	if next.at-began > prompt {
		t.Errorf("the next one led after %v", next.at-began)
	}
	if code, _ := a.ask("GET", "/leader/a/n?token="+won.Token, ""); code != 503 {
		t.Errorf("the killed client's server says %d", code)
	}
}

// A server that is frozen loses its clients' terms, and its first answer when it is thawed is no.
// The client that heard nothing knows from the deadline that it was told.
func TestServeFrozen(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	a, b := w.serve("a", "--ttl", "10s"), w.serve("b", "--ttl", "10s")
	one := a.campaign("one")
	one.next("renewed")
	two := b.campaign("two")
	a.awaitWaiting("a/n")
	a.signal(syscall.SIGSTOP)
	next := two.next("elected")
	var told time.Duration
	for len(one.lines) > 0 { // the last word of the frozen one
		if l := <-one.lines; l.Deadline != "" {
			var ns int64
			fmt.Sscan(l.Deadline, &ns)
			told = max(told, time.Duration(ns))
		}
	}
	if next.at < told {
		t.Errorf("the next one leads %v before the time that the first was told is over", told-next.at)
	}
	var asked []net.Conn // they wait in the socket's queue for the thaw
	for range 20 {
		c, err := net.Dial("unix", a.socket)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "GET /leader/a/n HTTP/1.1\r\nHost: x\r\n\r\n")
		asked = append(asked, c)
	}
	a.signal(syscall.SIGCONT)
	for i, c := range asked {
		_ = c.SetReadDeadline(time.Now().Add(limit))
		status, err := bufio.NewReader(c).ReadString('\n')
		if err != nil || !strings.Contains(status, " 503 ") {
			t.Errorf("answer %d after the thaw: %q %v", i, status, err)
		}
	}
	if end := one.next("ended"); end.Reason != "expired" {
		t.Errorf("the client of the frozen one is told %+v", end)
	}
	if code, _ := a.ask("GET", "/livez", ""); code != 200 {
		t.Errorf("livez says %d", code)
	}
}

// On SIGTERM every client is told, and everything is given up before the process ends; a client
// that does not stop is waited for no longer than it was told.
func TestServeStops(t *testing.T) {
	w := newWorld(t)
	a := w.serve("a", "--ttl", "12s")
	deaf := a.curl("-X", "POST", "http://localhost/v1/elections/n/campaign")
	deaf.next("elected")
	code, text := a.ask("POST", "/v1/locks/l", `{"lease_ms":1000}`)
	if code != 200 {
		t.Fatal(text)
	}
	a.signal(syscall.SIGTERM)
	stop := deaf.next("stopping")
	if stop.Reason != "shutdown" || stop.LeaseMS <= 0 {
		t.Errorf("got %+v", stop)
	}
	if end := deaf.next("ended"); end.Reason != "shutdown" {
		t.Errorf("got %+v", end)
	}
	a.ends(0)
	w.start("leader", "n").ends(exitNo)
	w.start("leader", "l").ends(exitNo)
	if _, err := os.Lstat(a.socket); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}

	// What a killed one leaves behind is replaced; beside a living one there is no place, frozen or
	// not.
	b := w.serve("b")
	b.signal(syscall.SIGSTOP)
	w.start("serve", "--socket", b.socket).ends(exitUsage).inOneLine().complains("another 'primacy serve' runs on")
	b.signal(syscall.SIGKILL)
	<-b.exited
	w.serve("b").signal(syscall.SIGINT).ends(0)
}

func TestServeWhatCannotWork(t *testing.T) {
	w := newWorld(t)
	short := filepath.Join(w.dir, "short")
	long := filepath.Join(w.dir, "long")
	for file, token := range map[string]string{short: "secret", long: strings.Repeat("secret", 4)} {
		if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for want, args := range map[string][]string{
		"0.0.0.0:0 is reached from other machines": {"--listen", "0.0.0.0:0"},
		"use at least 16":                          {"--token-file", short},
		"--token-file: open /nowhere":              {"--token-file", "/nowhere"},
		"give --tls-cert and --tls-key":            {"--tls-cert", short},
		"--tls-client-ca needs --tls-cert":         {"--tls-client-ca", short},
		"--ui-actions needs --ui":                  {"--ui-actions"},
		"--ui-token-file needs --ui":               {"--ui-token-file", long},
		"--ui-token-file needs --token-file":       {"--ui-token-file", long, "--ui"},
		"--ui-token-file: the token in":            {"--ui-token-file", short, "--ui", "--token-file", long},
		"has the token of --token-file":            {"--ui-token-file", long, "--ui", "--token-file", long},
		"--tls-cert: ":                             {"--tls-cert", short, "--tls-key", short},
		"nothing to listen on":                     {"--socket", "none"},
		"give HOST:PORT":                           {"--listen", "80"},
		"is no socket":                             {"--socket", short},
		"must be a folder of your own":             {"--socket", "/tmp/s"},
		"--max-clients 0":                          {"--max-clients", "0"},
		"--election: ":                             {"--election", "a\nb"},
		"unknown command":                          {"x"},
	} {
		p := w.start(append([]string{"serve"}, args...)...)
		p.ends(exitUsage).inOneLine().complains(want)
	}
	w.start("serve", "-q", "--timeout", "1s", "--store", "etcd://127.0.0.1:1").ends(exitUnreachable).inOneLine()
}

// A signal ends it also while it waits for the store.
func TestServeStopsWhileItWaitsForTheStore(t *testing.T) {
	w := newWorld(t)
	w.start("serve", "--socket", filepath.Join(w.dir, "s"), "--store", "etcd://127.0.0.1:1").
		tells("waiting for the store").signal(syscall.SIGTERM).ends(0)
}

// A socket that the service manager opened is served, and what it passes to us we pass to nobody.
func TestServeOnASocketThatIsPassedIn(t *testing.T) {
	w := newWorld(t)
	path := filepath.Join(w.dir, "passed")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	p := w.startSh(f, `LISTEN_PID=$$ LISTEN_FDS=1 exec primacy serve`)
	s := sideOn(p, path)
	s.ready()
	if _, err := os.Lstat(filepath.Join(w.dir, "primacy", "primacy.sock")); err == nil {
		t.Error("it made a socket of its own too")
	}
	s.signal(syscall.SIGTERM).ends(0)
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("it removed the manager's socket: %v", err)
	}
}

// startSh runs a shell with a file as descriptor 3.
func (w *world) startSh(f *os.File, script string) *prog {
	w.Helper()
	p := &prog{world: w, args: []string{script}, exited: make(chan struct{}), patience: limit}
	p.cmd = exec.Command("sh", "-c", script)
	p.cmd.Env, p.cmd.Dir, p.cmd.ExtraFiles = w.env, w.dir, []*os.File{f}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.err
	if err := p.cmd.Start(); err != nil {
		w.Fatal(err)
	}
	go func() { p.waitErr = p.cmd.Wait(); close(p.exited) }()
	w.Cleanup(func() { _ = p.cmd.Process.Kill(); <-p.exited })
	return p
}

// etcdCall makes one call of etcd's JSON form, and returns the status and the answer.
func etcdCall(t *testing.T, addr, path, body string) (int, map[string]any) {
	t.Helper()
	client := &http.Client{Timeout: limit}
	resp, err := client.Post("http://"+addr+"/v3/"+path, "application/json", bytes.NewBufferString(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var a map[string]any
	if err := json.NewDecoder(resp.Body).Decode(&a); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, a
}

// etcdAddr returns where a server answers etcd's clients.
func etcdAddr(s *side) string {
	s.tells("serving etcd's election, lock and lease calls on ")
	return regexp.MustCompile(`lease calls on (\S+)`).FindStringSubmatch(s.err.String())[1]
}

// TestServeAnswersEtcdsClients has a client of etcd's lead beside `primacy run`, in one line.
func TestServeAnswersEtcdsClients(t *testing.T) {
	w := newWorld(t)
	s := w.serve("side", "--etcd-api", "127.0.0.1:0", "--ttl", "2s")
	s.tells("warning: the store is etcd")
	addr := etcdAddr(s)
	_, granted := etcdCall(t, addr, "lease/grant", `{"TTL":"25"}`)
	lease, _ := granted["ID"].(string)
	code, won := etcdCall(t, addr, "election/campaign", `{"name":"bg==","lease":"`+lease+`","value":"dg=="}`) // n, v
	leader, _ := won["leader"].(map[string]any)
	if code != 200 || leader["lease"] != lease {
		t.Fatalf("campaign: %d, %v", code, won)
	}
	w.start("leader", "n").ends(0).says("etcd-")
	p := w.start("run", "n", "--", "sh", "-c", "echo works; sleep 60")
	w.start("status", "n").ends(0).says("etcd-", "n")
	p.prints("works") // the client of etcd's fell silent
	if code, a := etcdCall(t, addr, "election/leader", `{"name":"bg=="}`); code != 200 ||
		a["kv"].(map[string]any)["lease"] == lease {
		t.Errorf("leader: %d, %v", code, a)
	}
	p.signal(syscall.SIGTERM).ends(143)
	s.signal(syscall.SIGTERM).ends(0)
}

func TestServeGuardsItsEtcdAPI(t *testing.T) {
	w := newWorld(t)
	alone := w.start("serve", "--socket", "none", "--etcd-api", "127.0.0.1:0").tells("serving etcd's")
	alone.signal(syscall.SIGTERM).ends(0)
	w.start("serve", "--socket", "none", "--listen", "127.0.0.1:0", "--etcd-api",
		"0.0.0.0:0").ends(exitUsage).inOneLine().complains("--etcd-api", "--token-file")
	w.start("serve", "--socket", "none", "--listen", "127.0.0.1:0", "--etcd-api",
		"nonsense").ends(exitUsage).inOneLine().complains("--etcd-api")
	// clients' certificates are enough for --listen only: nothing is served meanwhile
	cert, key := filepath.Join(w.dir, "cert"), filepath.Join(w.dir, "key")
	certPEM, keyPEM := pemPair(t)
	for file, text := range map[string][]byte{cert: certPEM, key: keyPEM} {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := w.start("serve", "--listen", "127.0.0.1:0", "--etcd-api", "0.0.0.0:0", "--tls-cert", cert, "--tls-key", key,
		"--tls-client-ca", cert).ends(exitUsage).inOneLine()
	p.complains("--etcd-api 0.0.0.0:0 is reached from other machines", "and --token-file, or")
}

// TestTheEtcdPageHolds types the commands of docs/etcd-api.md.
func TestTheEtcdPageHolds(t *testing.T) {
	text, err := os.ReadFile("../../docs/etcd-api.md")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	addr := etcdAddr(w.serve("side", "--etcd-api", "127.0.0.1:0"))
	want := map[string]string{"lease/grant": `"ID":"77"`, "election/campaign": `"lease":"77"`,
		"lease/keepalive": `"TTL":"15"`, "election/leader": `"value":"aG9zdDE="`, "lease/revoke": `"header"`}
	for _, m := range regexp.MustCompile(`(?m)^curl .*/v3/(\S+) .*$`).FindAllStringSubmatch(string(text), -1) {
		out, err := exec.Command("sh", "-c", strings.ReplaceAll(m[0], "127.0.0.1:2378", addr)).Output()
		if err != nil || want[m[1]] == "" || !strings.Contains(string(out), want[m[1]]) {
			t.Errorf("%s: %s, %v; want %s", m[0], out, err, want[m[1]])
		}
		delete(want, m[1])
	}
	if len(want) != 0 {
		t.Errorf("not on the page: %v", want)
	}
}

// pemPair makes a certificate for 127.0.0.1 and localhost.
func pemPair(t *testing.T) (cert, key []byte) {
	t.Helper()
	priv, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &priv.PublicKey, priv)
	if err != nil {
		t.Fatal(err)
	}
	k, err := x509.MarshalPKCS8PrivateKey(priv)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: k})
}

// What is secret is in no output, page, figure, argument list or environment of anybody else.
func TestServeSecrets(t *testing.T) {
	w := newWorld(t)
	const canary = "CANARY-0123456789abcdef"
	file := filepath.Join(w.dir, "token")
	if err := os.WriteFile(file, []byte(canary+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cert, key := selfSigned(t, w.dir)
	// the server has no users: it takes any
	store := strings.Replace(w.store, "etcd://", "etcd://nobody:"+canary+"@", 1)
	addr := freeAddr(t)
	a := w.with("PRIMACY_STORE="+store).serve("a", "-v", "--ttl", "2s", "--listen", addr, "--token-file", file,
		"--tls-cert", cert, "--tls-key", key, "--ui", "--ui-actions")
	var texts []string
	see := func(method, path, body string, headers ...string) int {
		code, text := a.ask(method, path, body, headers...)
		texts = append(texts, text)
		return code
	}
	tls := w.curlTLS(cert, "https://"+addr)
	for token, want := range map[string]string{canary: "200", "wrong-0123456789abcdef": "401", "": "401"} {
		out := tls("/v1/elections", "-H", "Authorization: Bearer "+token)
		if !strings.HasPrefix(out, "HTTP/1.1 "+want) {
			t.Errorf("with token %q: %s", token, out)
		}
		texts = append(texts, out)
	}
	for _, path := range []string{"/metrics", "/v1/elections", "/livez", "/readyz", "/openapi.json",
		"/v1/elections/n", "/leader/n", "/nothing", "/v1/cron", "/ui/", "/ui/store", "/ui/election?name=n",
		"/ui/members",
		"/ui/cron", "/ui/login", "/ui/nothing"} {
		see("GET", path, "")
	}
	see("POST", "/v1/locks/n", `{"id":5}`)
	see("POST", "/v1/locks/n", `{}`)
	see("DELETE", "/v1/locks/n", "", "Primacy-Token", "1", "Authorization", "Bearer "+canary)
	one := a.campaign("one")
	one.next("elected")
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", a.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	a.signal(syscall.SIGTERM)
	one.next("ended")
	a.ends(0)
	texts = append(texts, string(cmdline), a.out.String(), a.err.String())
	if len(texts) < 15 || !strings.Contains(a.err.String(), "elected") {
		t.Errorf("looked at %d texts; the log is %q", len(texts), clip(a.err.String()))
	}
	for _, text := range texts {
		if strings.Contains(text, "CANARY") {
			t.Errorf("a secret is in %q", clip(text))
		}
	}
}

func freeAddr(t *testing.T) string {
	t.Helper()
	return net.JoinHostPort("127.0.0.1", servertest.FreePort(t))
}

// curlTLS returns what asks a server with that certificate, and shows the head of the answer too.
func (w *world) curlTLS(cert, base string) func(path string, args ...string) string {
	return func(path string, args ...string) string {
		out, err := exec.Command("curl", append([]string{"-sSi", "--cacert", cert, base + path},
			args...)...).CombinedOutput()
		if err != nil {
			w.Errorf("curl %s: %v: %s", path, err, out)
		}
		return string(out)
	}
}

// selfSigned writes a certificate for 127.0.0.1 and its key.
func selfSigned(t *testing.T, dir string) (cert, key string) {
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	certPEM, keyPEM := pemPair(t)
	for path, b := range map[string][]byte{cert: certPEM, key: keyPEM} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}
