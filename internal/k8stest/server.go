package k8stest

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/servertest"
)

// Namespace is where the tests' Leases are.
const Namespace = "elections"

// The tokens by which the server knows who asks.
const (
	AdminToken  = "token-of-the-admin" // may do everything
	UserToken   = "token-of-the-user"  // has the store's role, and no other
	NobodyToken = "token-of-nobody"    // is known, and may do nothing
)

// userName is whom UserToken belongs to: the service account that deploy/kubernetes names.
const userName = "system:serviceaccount:" + Namespace + ":primacy"

// Verbs are those of the store's role.
var Verbs = []string{"get", "list", "watch", "create", "update", "delete"}

// Server is an API server, the real one or the fake.
type Server struct {
	servertest.Process // of the real one

	URL  string // https://HOST:PORT
	Addr string // HOST:PORT
	CA   []byte // in PEM: who signed the server's certificate
	Cert []byte // in PEM: a certificate of the user with the store's role, and Key
	Key  []byte

	tb     testing.TB
	fake   *fake
	dir    string
	args   []string
	client *http.Client
}

// Real says whether the server is the real one.
func (s *Server) Real() bool { return s.fake == nil }

// Start starts the real server or the fake (see the package), which ends with the test, makes the
// namespace, and gives the user the store's role.
func Start(tb testing.TB) *Server {
	tb.Helper()
	which := os.Getenv("KUBE_APISERVER")
	if which == "real" || which != "fake" && program(tb).Exists() {
		tb.Logf("on kube-apiserver %s", Version)
		return StartReal(tb)
	}
	tb.Log("on a fake of the API: KUBE_APISERVER=real builds kube-apiserver, once, and runs on it")
	return StartFake(tb)
}

// StartReal starts the real server, on an etcd of its own.
func StartReal(tb testing.TB) *Server {
	tb.Helper()
	return StartOn(tb, etcdtest.Start(tb, etcdtest.Options{}).Endpoint())
}

// StartOn starts the real server on an etcd that runs, told by its endpoints.
func StartOn(tb testing.TB, etcd ...string) *Server {
	tb.Helper()
	bin := Binary(tb)
	ca := newAuthority(tb)
	cert, key := ca.issue(tb, pkix.Name{CommonName: "kube-apiserver"})
	userCert, userKey := ca.issue(tb, pkix.Name{CommonName: userName})
	dir := tb.TempDir()
	signing := write(tb, dir, "signing.pem", newSigningKey(tb))
	tokens := write(tb, dir, "tokens.csv", []byte(strings.Join([]string{
		AdminToken + `,admin,1,"system:masters"`, UserToken + `,` + userName + `,2`, NobodyToken + `,nobody,3`},
		"\n")+"\n"))
	args := []string{bin, "--etcd-servers=" + strings.Join(etcd, ","), "--bind-address=127.0.0.1",
		"--tls-cert-file=" + write(tb, dir, "server.pem", cert),
		"--tls-private-key-file=" + write(tb, dir, "server.key", key),
		"--client-ca-file=" + write(tb, dir, "ca.pem", ca.pem), "--token-auth-file=" + tokens,
		"--authorization-mode=RBAC",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=" + signing,
		"--service-account-signing-key-file=" + signing, "--service-cluster-ip-range=10.0.0.0/24",
		// There are no nodes: nobody is to find the server by its service.
		"--endpoint-reconciler-type=none", "--advertise-address=192.0.2.1"}
	var last error
	for range 3 {
		// Between choosing a port and using it, another process may take it: hence another try.
		port := servertest.FreePort(tb)
		s := &Server{URL: "https://127.0.0.1:" + port, Addr: "127.0.0.1:" + port, CA: ca.pem, Cert: userCert,
			Key: userKey, tb: tb, dir: dir, args: append(slices.Clone(args), "--secure-port="+port)}
		s.client = &http.Client{Transport: &http.Transport{TLSClientConfig: s.TLS()}}
		if last = s.up(); last == nil {
			tb.Cleanup(s.down)
			s.prepare()
			return s
		}
		s.Process.Kill()
	}
	tb.Fatalf("k8stest: %v", last)
	return nil
}

// TLS returns the configuration of a client that trusts the server.
func (s *Server) TLS() *tls.Config {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(s.CA)
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
}

func (s *Server) up() error {
	if err := s.Launch(); err != nil {
		return err
	}
	return s.Ready(2 * time.Minute)
}

// Launch starts the real server, anew if it runs, with its data. [Server.Ready] waits for it.
func (s *Server) Launch() error {
	s.Process.Kill()
	return s.Run(s.tb, exec.Command(s.args[0], s.args[1:]...), filepath.Join(s.dir, "log"))
}

// Ready returns nil when the real server answers, and an error when it does not within the limit or
// has exited.
func (s *Server) Ready(limit time.Duration) error {
	end := time.After(limit)
	for {
		if status, _, err := s.try("GET", "/readyz", nil); err == nil && status == http.StatusOK {
			return nil
		}
		select {
		case <-s.Done():
			return fmt.Errorf("kube-apiserver exited:\n%s", s.LogTail())
		case <-end:
			return fmt.Errorf("kube-apiserver is not ready after %v:\n%s", limit, s.LogTail())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (s *Server) down() {
	s.client.CloseIdleConnections()
	s.Cont()
	s.Process.Kill()
	if s.tb.Failed() {
		s.tb.Logf("the end of kube-apiserver's log:\n%s", s.LogTail())
	}
}

// Kill ends the server as SIGKILL does.
func (s *Server) Kill() {
	if s.fake != nil {
		s.fake.kill()
		return
	}
	s.Process.Kill()
}

// Restart ends the server and starts it again, with its data. It returns when it is ready.
func (s *Server) Restart() {
	s.tb.Helper()
	s.Kill()
	if s.fake != nil {
		s.fake.start(s.Addr)
		return
	}
	if err := s.up(); err != nil {
		s.tb.Fatalf("k8stest: %v", err)
	}
}

// try sends one request as the admin.
func (s *Server) try(method, path string, body []byte) (int, []byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, s.URL+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Authorization", "Bearer "+AdminToken)
	req.Header.Set("Content-Type", "application/json")
	if len(body) > 0 && body[0] != '{' {
		req.Header.Set("Content-Type", "application/yaml")
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, text, err
}

// Do sends one request as the admin, with a body in JSON or YAML, and returns the answer. The test
// fails where it is refused.
func (s *Server) Do(method, path, body string) []byte {
	s.tb.Helper()
	status, text, err := s.try(method, path, []byte(body))
	if err != nil || status >= 300 {
		s.tb.Fatalf("k8stest: %s %s: %d %s %v", method, path, status, text, err)
	}
	return text
}

// Leases is the path of the tests' Leases.
const Leases = "/apis/coordination.k8s.io/v1/namespaces/" + Namespace + "/leases"

const rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/" + Namespace

// prepare makes the namespace, and applies deploy/kubernetes/base there: so what tests do on
// the real server, that role lets them do.
func (s *Server) prepare() {
	s.tb.Helper()
	root, err := root()
	if err != nil {
		s.tb.Fatalf("k8stest: %v", err)
	}
	text, err := os.ReadFile(filepath.Join(root, "deploy", "kubernetes", "base", "role.yaml"))
	if err != nil {
		s.tb.Fatalf("k8stest: %v", err)
	}
	s.Do("POST", "/api/v1/namespaces", `{"metadata":{"name":"`+Namespace+`"}}`)
	for doc := range strings.SplitSeq(strings.Replace(string(text), "namespace: default", "namespace: "+Namespace, 1),
		"\n---\n") {
		path := map[string]string{"Role": rbac + "/roles", "RoleBinding": rbac + "/rolebindings",
			"ServiceAccount": "/api/v1/namespaces/" + Namespace + "/serviceaccounts"}
		s.Do("POST", path[kindOf(doc)], doc)
	}
	s.await(Verbs)
}

// kindOf returns the kind of an object in YAML.
func kindOf(doc string) string {
	for line := range strings.Lines(doc) {
		if kind, ok := strings.CutPrefix(line, "kind: "); ok {
			return strings.TrimSpace(kind)
		}
	}
	return ""
}

func role(verbs []string) string {
	b, err := json.Marshal(verbs)
	if err != nil {
		panic(err)
	}
	return `{"metadata":{"name":"primacy"},"rules":[{"apiGroups":["coordination.k8s.io"],"resources":["leases"],
		"verbs":` + string(b) + `}]}`
}

// Allow lets the user do these verbs, and no others. It returns when the server knows that.
func (s *Server) Allow(verbs ...string) {
	s.tb.Helper()
	if s.fake != nil {
		s.fake.allow(verbs)
		return
	}
	s.Do("PUT", rbac+"/roles/primacy", role(verbs))
	s.await(verbs)
}

// await waits until the user may do those verbs, and no others: the server learns of a role by a
// watch of its own.
func (s *Server) await(verbs []string) {
	s.tb.Helper()
	end := time.Now().Add(time.Minute)
	for _, verb := range Verbs {
		review := fmt.Sprintf(`{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","spec":{"user":%q,
			"resourceAttributes":{"namespace":%q,"group":"coordination.k8s.io","resource":"leases","verb":%q}}}`,
			userName, Namespace, verb)
		for {
			var answer struct{ Status struct{ Allowed bool } }
			if err := json.Unmarshal(s.Do("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review),
				&answer); err != nil {
				s.tb.Fatal(err)
			}
			if answer.Status.Allowed == slices.Contains(verbs, verb) {
				break
			}
			if time.Now().After(end) {
				s.tb.Fatalf("k8stest: %s of leases: allowed is %v after a minute", verb, answer.Status.Allowed)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}
