package k8sstore

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/registerstore"
)

// Config is how a store reaches the API server. URL and Namespace are required.
type Config struct {
	URL       string // "https://HOST:PORT", as client-go's rest.Config.Host
	Namespace string // of the Leases; it must be there already
	Prefix    string // begins their names: at most 40 of a-z 0-9 -; "primacy" if empty

	// Client sends the requests, and knows by itself who asks, as one of client-go's does. Its
	// Timeout is not used. Nil: the store makes its own, with TLS and Token.
	Client *http.Client
	TLS    *tls.Config // nil: the certificate authorities of the system, no certificate of our own
	Token  TokenSource // nil: no token
}

// TokenSource returns the token to send. Refused is the one that the server has just refused, ""
// where it has not: a source that keeps a token then gets another one.
type TokenSource func(ctx context.Context, refused string) (token string, err error)

// Store is a [driver.Store] on the Leases of a namespace.
type Store struct {
	*registerstore.Store
	api *api
}

var (
	_ driver.Store   = (*Store)(nil)
	_ driver.Asker   = (*Store)(nil)
	_ driver.Journal = (*Store)(nil)
	_ driver.Admin   = (*Store)(nil)
)

const (
	// minTTL is ten times what an API server takes for a write on a bad day, 200 ms. Its own aim is
	// a second for 99 of 100: where it comes near that, a longer ttl loses fewer terms.
	minTTL = 2 * time.Second
	// poll is how often is looked for what a watch should have told. Each look of each name that
	// somebody waits for is a request.
	poll = 15 * time.Second
	// journal is how many bytes of records fit into an annotation: written in base 64, with their
	// keys and what JSON has around them.
	journal = 96 << 10
)

// label is what Kubernetes takes for the name of a namespace, and we for a prefix.
var label = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// New returns a store. It does no I/O. An error says what is wrong with c.
func New(c Config) (*Store, error) {
	a, err := newAPI(c)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w: %w", err, driver.ErrRefused)
	}
	s, err := registerstore.FromRegister(a, registerstore.Options{
		Name: "Kubernetes namespace " + a.namespace, MinTTL: minTTL, Poll: poll, Journal: journal, Warnings: a.warnings,
		Close: func() error { a.close(); return nil },
	})
	if err != nil {
		return nil, err
	}
	return &Store{s, a}, nil
}

// Open returns a store after it has asked the API server whether a Lease could be made. It waits
// until ctx ends for a server that does not answer. [driver.ErrRefused] says that it does not know
// who asks, that the role is missing, or the namespace.
func Open(ctx context.Context, c Config) (*Store, error) {
	s, err := New(c)
	if err != nil {
		return nil, err
	}
	if err := s.api.probe(ctx); err != nil {
		s.Close()
		return nil, fmt.Errorf("%s: %w", s.Caps().Store, err)
	}
	return s, nil
}

// ErrNotInCluster says that this process does not run in a pod of Kubernetes, or in one without a
// token.
var ErrNotInCluster = errors.New("not in a pod of Kubernetes")

// serviceAccount is where a pod finds its token.
const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

// InCluster returns how a pod reaches the API server of its cluster: as its service account, in its
// own namespace. The token is read again as it rotates. The error is an [ErrNotInCluster] where
// this is no pod, or automountServiceAccountToken is false.
func InCluster() (Config, error) { return inCluster(serviceAccount) }

func inCluster(dir string) (c Config, err error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return c, fmt.Errorf("%w: KUBERNETES_SERVICE_HOST is not set", ErrNotInCluster)
	}
	file := filepath.Join(dir, "token")
	if _, err := os.Stat(file); err != nil {
		return c, fmt.Errorf("%w, or one without a service account's token: %w", ErrNotInCluster, err)
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return c, fmt.Errorf("kubernetes: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return c, fmt.Errorf("kubernetes: %s holds no certificate", filepath.Join(dir, "ca.crt"))
	}
	namespace, err := os.ReadFile(filepath.Join(dir, "namespace"))
	if err != nil {
		return c, fmt.Errorf("kubernetes: %w", err)
	}
	return Config{
		URL: "https://" + net.JoinHostPort(host, port), Namespace: strings.TrimSpace(string(namespace)),
		TLS: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, Token: FileToken(file),
	}, nil
}

// baseURL reads the address of the server.
func baseURL(text string) (*url.URL, error) {
	if !strings.Contains(text, "://") {
		text = "https://" + text // as client-go takes it
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return nil, errors.New("the address is no https://HOST:PORT")
	}
	if u.User != nil || u.RawQuery != "" {
		return nil, errors.New("the address has a user or a query: use https://HOST:PORT")
	}
	return u, nil
}
