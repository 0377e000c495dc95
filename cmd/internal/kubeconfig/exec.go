package kubeconfig

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/primacy-go/primacy/k8sstore"
)

// plugin is a program that says who asks, as client-go runs it.
type plugin struct {
	APIVersion string `yaml:"apiVersion"`
	Command    string
	Args       []string
	Env        []struct{ Name, Value string }
	Interact   string `yaml:"interactiveMode"`
	WantsInfo  bool   `yaml:"provideClusterInfo"`
	Hint       string `yaml:"installHint"`

	cluster map[string]any // what it is told of the cluster

	mu    sync.Mutex
	now   credential
	known bool
	under *run // under way; nil: none is
}

// run is one run of a plugin, for all who ask meanwhile.
type run struct {
	done chan struct{}
	got  credential // and err are there when done is closed
	err  error
}

// credential is what a plugin answers.
type credential struct {
	Token                 string
	ClientCertificateData string
	ClientKeyData         string
	ExpirationTimestamp   time.Time
}

// early is how long before its end another credential is asked for.
const early = 10 * time.Second

// apply has a configuration ask the plugin.
func (p *plugin) apply(c *k8sstore.Config, at *cluster) error {
	switch {
	case p.Interact == "Always":
		return fmt.Errorf("the plugin %s asks a person (interactiveMode: Always): nobody is there", p.Command)
	case p.Command == "":
		return fmt.Errorf("exec has no command")
	}
	if p.WantsInfo {
		p.cluster = map[string]any{"server": at.Server, "tls-server-name": at.TLSServerName,
			"insecure-skip-tls-verify": at.Insecure}
		if at.CA+at.CAData != "" {
			pem, err := content(at.CAData, at.CA)
			if err != nil {
				return err
			}
			p.cluster["certificate-authority-data"] = pem
		}
	}
	c.Token = func(ctx context.Context, refused string) (string, error) {
		got, err := p.ask(ctx, refused)
		return got.Token, err
	}
	if c.TLS.GetClientCertificate == nil {
		c.TLS.GetClientCertificate = func(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			got, err := p.ask(info.Context(), "")
			if err != nil || got.ClientCertificateData == "" {
				return &tls.Certificate{}, err
			}
			pair, err := tls.X509KeyPair([]byte(got.ClientCertificateData), []byte(got.ClientKeyData))
			return &pair, err
		}
	}
	return nil
}

// startWith starts a plugin; nil: its exec.Cmd does.
var startWith atomic.Pointer[func(*exec.Cmd) error]

// StartWith has plugins started by start from now on. A process that reaps children which it did
// not start needs to know which these are, or it takes a plugin's exit status from whoever waits
// for the plugin.
func StartWith(start func(*exec.Cmd) error) { startWith.Store(&start) }

// limit is how long a plugin may run.
const limit = time.Minute

// ask returns what the plugin answered last, or runs it where that ends soon or was refused. The
// run is not part of the call: whoever asks has less time than most plugins need, again and again.
// While a credential is good nobody waits for the next.
func (p *plugin) ask(ctx context.Context, refused string) (credential, error) {
	p.mu.Lock()
	good := p.known && (refused == "" || refused != p.now.Token)
	left := time.Until(p.now.ExpirationTimestamp) // zero: it does not end, until it is refused
	if good && (p.now.ExpirationTimestamp.IsZero() || left > early) {
		defer p.mu.Unlock()
		return p.now, nil
	}
	if p.under == nil {
		p.under = &run{done: make(chan struct{})}
		go p.renew(p.under)
	}
	now, r := p.now, p.under
	p.mu.Unlock()
	if good && left > 0 {
		return now, nil
	}
	select {
	case <-r.done:
		return r.got, r.err
	case <-ctx.Done():
		return credential{}, fmt.Errorf("the plugin %s of the kubeconfig has not answered yet: %w", p.Command,
			ctx.Err())
	}
}

// renew runs the plugin, and keeps what it answers.
func (p *plugin) renew(r *run) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	r.got, r.err = p.run(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.err == nil {
		p.now, p.known = r.got, true
	}
	p.under = nil
	close(r.done)
}

func (p *plugin) run(ctx context.Context) (got credential, err error) {
	cmd := exec.CommandContext(ctx, p.Command, p.Args...)
	cmd.WaitDelay = time.Second
	spec := map[string]any{"interactive": false}
	if p.cluster != nil {
		spec["cluster"] = p.cluster
	}
	info, err := json.Marshal(map[string]any{"kind": "ExecCredential", "apiVersion": p.APIVersion, "spec": spec})
	if err != nil {
		return got, err
	}
	cmd.Env = append(os.Environ(), "KUBERNETES_EXEC_INFO="+string(info))
	for _, e := range p.Env {
		cmd.Env = append(cmd.Env, e.Name+"="+e.Value)
	}
	var said, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &complaint
	start := cmd.Start
	if f := startWith.Load(); f != nil {
		start = func() error { return (*f)(cmd) }
	}
	if err = start(); err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		why := strings.Join(strings.Fields(complaint.String()+" "+p.Hint), " ")
		return got, fmt.Errorf("the plugin %s of the kubeconfig: %w: %s", p.Command, err, why[:min(len(why), 300)])
	}
	var answer struct {
		Kind   string
		Status credential
	}
	if err := json.Unmarshal(said.Bytes(), &answer); err != nil || answer.Kind != "ExecCredential" {
		return got, fmt.Errorf("the plugin %s of the kubeconfig answers no ExecCredential", p.Command)
	}
	if answer.Status.Token == "" && answer.Status.ClientCertificateData == "" {
		return got, fmt.Errorf("the plugin %s of the kubeconfig gives neither a token nor a certificate", p.Command)
	}
	got = answer.Status
	if got.ClientCertificateData == "" {
		return got, nil
	}
	pair, err := tls.X509KeyPair([]byte(got.ClientCertificateData), []byte(got.ClientKeyData))
	if err != nil {
		return got, fmt.Errorf("the plugin %s of the kubeconfig gives no certificate: %w", p.Command, err)
	}
	if got.ExpirationTimestamp.IsZero() { // nothing but its end says that it is refused
		got.ExpirationTimestamp = pair.Leaf.NotAfter
	}
	return got, nil
}
