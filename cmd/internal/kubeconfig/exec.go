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

	mu      sync.Mutex
	now     credential
	expires time.Time // zero: it does not, until it is refused
	known   bool
}

// credential is what a plugin answers.
type credential struct {
	Token                 string
	ClientCertificateData string
	ClientKeyData         string
	ExpirationTimestamp   time.Time
}

// early is how long before its end a credential is not used any more.
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

// ask returns what the plugin answered last, or runs it where that ends soon or was refused.
func (p *plugin) ask(ctx context.Context, refused string) (credential, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fresh := p.expires.IsZero() || time.Until(p.expires) > early
	if p.known && fresh && (refused == "" || refused != p.now.Token) {
		return p.now, nil
	}
	got, err := p.run(ctx)
	if err != nil {
		return credential{}, err
	}
	p.now, p.expires, p.known = got, got.ExpirationTimestamp, true
	return got, nil
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
	if err := cmd.Run(); err != nil {
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
	return answer.Status, nil
}
