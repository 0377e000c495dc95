package kubeconfig

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/supervise"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/k8stest"
	"github.com/primacy-go/primacy/internal/servertest"
	"github.com/primacy-go/primacy/k8sstore"
)

// text is a kubeconfig in the form that kubectl writes, with that user.
func text(srv *k8stest.Server, user string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
preferences: {}
clusters:
- cluster:
    certificate-authority-data: %s
    server: %s
  name: here
contexts:
- context:
    cluster: here
    namespace: %s
    user: me
  name: it
current-context: it
users:
- name: me
  user:
%s
`, base64.StdEncoding.EncodeToString(srv.CA), srv.URL, k8stest.Namespace, user)
}

func write(t *testing.T, dir, name, content string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(content), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// opens opens the store that a kubeconfig leads to.
func opens(t *testing.T, c k8sstore.Config) *k8sstore.Store {
	t.Helper()
	s, err := k8sstore.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// Each way by which a kubeconfig says who asks.
func TestWhoAsks(t *testing.T) {
	srv, dir := k8stest.Start(t), t.TempDir()
	t.Setenv("KUBECONFIG", "")
	write(t, dir, "me.pem", string(srv.Cert))
	write(t, dir, "me.key", string(srv.Key))
	write(t, dir, "token", k8stest.UserToken+"\n")
	encode := func(b []byte) string { return base64.StdEncoding.EncodeToString(b) }
	plugin := write(t, dir, "plugin", `#!/bin/sh
echo run >> "$0.runs"
case "$KUBERNETES_EXEC_INFO" in
*'"server":"`+srv.URL+`"'*) ;;
*) echo "no cluster in $KUBERNETES_EXEC_INFO" >&2; exit 1;;
esac
test "$1 $WHO" = "get me" || exit 1
end=$(date -u -d "+1 hour" +%Y-%m-%dT%H:%M:%SZ)
echo '{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1",'
echo '"status":{"token":"`+k8stest.UserToken+`","expirationTimestamp":"'$end'"}}'
`)
	answer, err := json.Marshal(map[string]any{"kind": "ExecCredential",
		"status": map[string]string{"clientCertificateData": string(srv.Cert), "clientKeyData": string(srv.Key)}})
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, "certs.json", string(answer))
	withCert := write(t, dir, "certs", "#!/bin/sh\ncat \"$0.json\"\n")
	for name, user := range map[string]string{
		"certificate in the file": "    client-certificate-data: " + encode(srv.Cert) + "\n    client-key-data: " +
			encode(srv.Key),
		"certificate beside it": "    client-certificate: me.pem\n    client-key: me.key",
		"token":                 "    token: " + k8stest.UserToken,
		"file with a token":     "    tokenFile: token",
		"plugin": `    exec:
      apiVersion: client.authentication.k8s.io/v1
      args: [get]
      command: ./plugin
      env:
      - name: WHO
        value: me
      installHint: Install it for use with kubectl by following
        https://example.com
      interactiveMode: IfAvailable
      provideClusterInfo: true`,
		"plugin with a certificate": "    exec: {apiVersion: client.authentication.k8s.io/v1, command: " + withCert +
			"}",
	} {
		t.Run(name, func(t *testing.T) {
			c, err := Load(write(t, dir, "config", text(srv, user)), "")
			if err != nil {
				t.Fatal(err)
			}
			s := opens(t, c)
			for range 3 {
				if _, err := s.Line(t.Context(), "x"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	if runs, err := os.ReadFile(plugin + ".runs"); err != nil || string(runs) != "run\n" {
		t.Errorf("the plugin ran %q, %v: it was good for an hour", runs, err)
	}
}

func TestWhichFileAndContext(t *testing.T) {
	srv, dir := k8stest.StartFake(t), t.TempDir()
	one := write(t, dir, "one", text(srv, "    token: "+k8stest.UserToken))
	two := write(t, dir, "two", strings.NewReplacer("name: it", "name: other", "namespace: "+k8stest.Namespace,
		"namespace: two",
		"current-context: it", "current-context: other", "token: ", "token: not-").Replace(text(srv, "    token: x")))
	t.Setenv("KUBECONFIG", one+":"+filepath.Join(dir, "missing")+":"+two)
	c, err := Load("", "")
	if err != nil || c.Namespace != k8stest.Namespace {
		t.Fatalf("%+v, %v", c, err)
	}
	opens(t, c)
	if c, err = Load("", "other"); err != nil || c.Namespace != "two" {
		t.Errorf("%+v, %v", c, err)
	}
	t.Setenv("KUBECONFIG", "")
	t.Setenv("HOME", dir)
	if err := os.Mkdir(filepath.Join(dir, ".kube"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, dir, ".kube/config", text(srv, "    token: x"))
	if c, err = Load("", ""); err != nil || c.URL != srv.URL {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestWhatCannotWorkIsSaid(t *testing.T) {
	srv, dir := k8stest.StartFake(t), t.TempDir()
	t.Setenv("KUBECONFIG", filepath.Join(dir, "nowhere"))
	good := text(srv, "    token: x")
	for what, c := range map[string]struct{ text, context, want string }{
		"yaml":          {"a:\n\t- b", "", "yaml"},
		"context":       {good, "nobody", "there is no context nobody"},
		"none":          {strings.Replace(good, "current-context: it", "", 1), "", "context=NAME"},
		"user":          {strings.Replace(good, "user: me", "user: you", 1), "", `there is no user "you"`},
		"cluster":       {strings.Replace(good, "cluster: here", "cluster: there", 1), "", `no cluster "there"`},
		"password":      {text(srv, "    username: u\n    password: CANARY"), "", "user and password"},
		"as":            {text(srv, "    token: x\n    as: another"), "", "as another"},
		"auth-provider": {text(srv, "    auth-provider: {name: gcp}"), "", "use an exec plugin"},
		"proxy": {strings.Replace(good, "    server:", "    proxy-url: http://p\n    server:", 1), "",
			"HTTPS_PROXY"},
		"person": {text(srv, "    exec: {command: x, interactiveMode: Always}"), "", "nobody is there"},
		"key":    {text(srv, "    client-certificate: nowhere.pem"), "", "nowhere.pem"},
		"ca": {strings.Replace(good, "certificate-authority-data: ", "certificate-authority-data: eA== # ",
			1), "", "no certificate in PEM form"},
	} {
		_, err := Load(write(t, dir, "config", c.text), c.context)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.ContainsAny(err.Error(), "\n") ||
			strings.Contains(err.Error(), "CANARY") {
			t.Errorf("%s: %v, want %s", what, err, c.want)
		}
	}
	if _, err := Load("", ""); err == nil || !strings.Contains(err.Error(), "nowhere") {
		t.Error(err)
	}
	c, err := Load(write(t, dir, "config", text(srv, "    exec: {command: sh, args: [-c, 'echo no luck >&2; "+
		"exit 3']}")), "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k8sstore.Open(t.Context(), c); err == nil || !strings.Contains(err.Error(), "no luck") ||
		errors.Is(err, driver.ErrRefused) {
		t.Error(err)
	}
}

// A plugin takes longer than a renewal may: what it answers counts for the next, and nobody waits
// for it longer than he has time.
func TestAPluginThatTakesLong(t *testing.T) {
	srv, dir := k8stest.StartFake(t), t.TempDir()
	write(t, dir, "plugin", `#!/bin/sh
echo run >> "$0.runs"
while [ ! -e "$0.go" ]; do [ -e "$0" ] || exit 1; sleep 0.05; done
echo '{"kind":"ExecCredential","status":{"token":"`+k8stest.UserToken+`"}}'
`)
	c, err := Load(write(t, dir, "config", text(srv, "    exec: {command: ./plugin}")), "")
	if err != nil {
		t.Fatal(err)
	}
	patient := make(chan error, 1)
	go func() {
		_, err := c.Token(t.Context(), "")
		patient <- err
	}()
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		began := time.Now()
		_, err := c.Token(ctx, "")
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 5*time.Second {
			t.Errorf("asked for a tenth of a second it answers %v after %v", err, time.Since(began))
		}
	}
	write(t, dir, "plugin.go", "")
	if err := <-patient; err != nil {
		t.Error(err)
	}
	if got, err := c.Token(t.Context(), ""); got != k8stest.UserToken || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if runs, err := os.ReadFile(filepath.Join(dir, "plugin.runs")); err != nil || string(runs) != "run\n" {
		t.Errorf("the plugin ran %q, %v", runs, err)
	}
}

// As process 1 of a container the program reaps what it did not start. A plugin's exit status is
// for who waits for the plugin.
func TestAPluginIsNotReapedByAnother(t *testing.T) {
	s, err := supervise.New()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.Reap(ctx)
	StartWith(s.StartOther)
	defer startWith.Store(nil)
	answer := `{"kind": "ExecCredential", "status": {"token": "t"}}`
	p := plugin{Command: "echo", Args: []string{answer}}
	for range 200 {
		if got, err := p.run(ctx); err != nil || got.Token != "t" {
			t.Fatalf("got %+v, %v", got, err)
		}
	}
}

// A plugin that gives a certificate, and does not say how long it is good, is run again when that
// ends.
func TestACertificateOfAPluginEnds(t *testing.T) {
	dir := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for left, want := range map[time.Duration]int{time.Hour: 1, -time.Hour: 3} {
		about := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(left)}
		cert, err := x509.CreateCertificate(rand.Reader, about, about, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := json.Marshal(map[string]any{"kind": "ExecCredential", "status": map[string]string{
			"clientCertificateData": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})),
			"clientKeyData":         string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded}))}})
		if err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprint("plugin", want)
		p := plugin{Command: write(t, dir, name, "#!/bin/sh\necho run >> \"$0.runs\"\ncat \"$0.json\"\n")}
		write(t, dir, name+".json", string(answer))
		for range 3 {
			if _, err := p.ask(t.Context(), ""); err != nil {
				t.Fatal(err)
			}
		}
		if runs, err := os.ReadFile(p.Command + ".runs"); err != nil || strings.Count(string(runs), "run") != want {
			t.Errorf("with a certificate that is good for %v the plugin ran %q, %v, want %d", left, runs, err, want)
		}
	}
}

// kubectl, with the same file, shows who leads.
func TestKubectlShowsWhoLeads(t *testing.T) {
	servertest.Long(t, "race-program")
	srv := k8stest.Start(t)
	if !srv.Real() {
		t.Skip("NOT TESTED: kubectl asks more than the fake answers")
	}
	kubectl, err := exec.LookPath("kubectl")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip("NOT TESTED: kubectl is not installed: apt-get install kubernetes-client")
	}
	config := write(t, t.TempDir(), "config", text(srv, "    token: "+k8stest.UserToken))
	c, err := Load(config, "")
	if err != nil {
		t.Fatal(err)
	}
	l, err := opens(t, c).Grant(t.Context(), "the-leader", 15*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Claim(t.Context(), driver.Claim{Name: "nightly", ID: "c"}); err != nil {
		t.Fatal(err)
	}
	get := func(args ...string) string {
		t.Helper()
		cmd := exec.Command(kubectl, append([]string{"--kubeconfig", config, "get", "lease"}, args...)...)
		cmd.Env = append(os.Environ(), "HOME="+t.TempDir()) // where it keeps what it has learned
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	rows := strings.Fields(get("--no-headers", "-l", "primacy-go.github.io/kind=line"))
	if len(rows) != 3 || rows[0] != "primacy.line-nightly" || rows[1] != "the-leader" {
		t.Errorf("get lease: %q", rows)
	}
	want := "the-leader 15"
	if got := get("-l", "primacy-go.github.io/kind=lease", "-o",
		"jsonpath={.items[*].spec.holderIdentity} {.items[*].spec.leaseDurationSeconds}"); got != want {
		t.Errorf("the process's own: %q, want %q", got, want)
	}
}
