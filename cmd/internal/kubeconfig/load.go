package kubeconfig

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v2"

	"github.com/primacy-go/primacy/k8sstore"
)

// file is a kubeconfig, as far as it is read.
type file struct {
	CurrentContext string `yaml:"current-context"`
	Clusters       []struct {
		Name    string
		Cluster cluster
	}
	Contexts []struct {
		Name    string
		Context struct{ Cluster, User, Namespace string }
	}
	Users []struct {
		Name string
		User user
	}
}

type cluster struct {
	Server        string
	CA            string `yaml:"certificate-authority"`
	CAData        string `yaml:"certificate-authority-data"`
	Insecure      bool   `yaml:"insecure-skip-tls-verify"`
	TLSServerName string `yaml:"tls-server-name"`
	ProxyURL      string `yaml:"proxy-url"`
}

type user struct {
	Cert         string `yaml:"client-certificate"`
	CertData     string `yaml:"client-certificate-data"`
	Key          string `yaml:"client-key"`
	KeyData      string `yaml:"client-key-data"`
	Token        string
	TokenFile    string `yaml:"tokenFile"`
	Username     string
	As           string `yaml:"as"`
	AuthProvider any    `yaml:"auth-provider"`
	Exec         *plugin
}

// Load returns how a context reaches its cluster: "" is the current one. Without a file those that
// $KUBECONFIG lists are read, or ~/.kube/config; what several of them define counts as in the
// first.
func Load(path, contextName string) (c k8sstore.Config, err error) {
	all, from, err := read(path)
	if err != nil {
		return c, err
	}
	contextName = cmp.Or(contextName, all.CurrentContext)
	if contextName == "" {
		return c, fmt.Errorf("kubeconfig %s: it has no current context: use context=NAME", from)
	}
	for _, x := range all.Contexts {
		if x.Name != contextName {
			continue
		}
		c, err := all.config(x.Context.Cluster, x.Context.User)
		c.Namespace = x.Context.Namespace
		if err != nil {
			return c, fmt.Errorf("kubeconfig %s: context %s: %w", from, contextName, err)
		}
		return c, nil
	}
	return c, fmt.Errorf("kubeconfig %s: there is no context %s", from, contextName)
}

// read reads the files, and returns what they are called.
func read(path string) (all file, from string, err error) {
	paths, must := []string{path}, path != ""
	if list := os.Getenv("KUBECONFIG"); path == "" && list != "" {
		paths = filepath.SplitList(list)
	} else if path == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return all, "", fmt.Errorf("kubeconfig: %w", err)
		}
		paths, must = []string{filepath.Join(home, ".kube", "config")}, true
	}
	found := 0
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if errors.Is(err, fs.ErrNotExist) && !must || p == "" {
			continue // as kubectl does with a list
		}
		if err != nil {
			return all, "", fmt.Errorf("kubeconfig: %w", err)
		}
		var f file
		if err := yaml.Unmarshal(b, &f); err != nil {
			return all, "", fmt.Errorf("kubeconfig %s: %s", p, strings.Join(strings.Fields(err.Error()), " "))
		}
		f.resolve(filepath.Dir(p))
		found++
		all.CurrentContext = cmp.Or(all.CurrentContext, f.CurrentContext)
		all.Clusters, all.Contexts = append(all.Clusters, f.Clusters...), append(all.Contexts, f.Contexts...)
		all.Users = append(all.Users, f.Users...)
	}
	from = strings.Join(paths, string(filepath.ListSeparator))
	if found == 0 {
		return all, from, fmt.Errorf("kubeconfig: none of %s is there", from)
	}
	return all, from, nil
}

// resolve takes the paths in a file as relative to its folder.
func (f *file) resolve(dir string) {
	at := func(path *string) {
		if *path != "" && !filepath.IsAbs(*path) {
			*path = filepath.Join(dir, *path)
		}
	}
	for i := range f.Clusters {
		at(&f.Clusters[i].Cluster.CA)
	}
	for i := range f.Users {
		u := &f.Users[i].User
		at(&u.Cert)
		at(&u.Key)
		at(&u.TokenFile)
		if u.Exec != nil && strings.ContainsRune(u.Exec.Command, filepath.Separator) {
			at(&u.Exec.Command)
		}
	}
}

// config puts a cluster and a user together.
func (f *file) config(clusterName, userName string) (c k8sstore.Config, err error) {
	var at *cluster
	for i := len(f.Clusters) - 1; i >= 0; i-- {
		if f.Clusters[i].Name == clusterName {
			at = &f.Clusters[i].Cluster
		}
	}
	if at == nil || at.Server == "" {
		return c, fmt.Errorf("there is no cluster %q with a server", clusterName)
	}
	if at.ProxyURL != "" {
		return c, fmt.Errorf("cluster %s: proxy-url is not supported: set HTTPS_PROXY", clusterName)
	}
	c.URL = at.Server
	c.TLS = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: at.TLSServerName, InsecureSkipVerify: at.Insecure}
	if at.CA+at.CAData != "" {
		pem, err := content(at.CAData, at.CA)
		if err != nil {
			return c, fmt.Errorf("cluster %s: certificate-authority: %w", clusterName, err)
		}
		if c.TLS.RootCAs = x509.NewCertPool(); !c.TLS.RootCAs.AppendCertsFromPEM(pem) {
			return c, fmt.Errorf("cluster %s: certificate-authority holds no certificate in PEM form", clusterName)
		}
	}
	if userName == "" {
		return c, nil
	}
	for i := range f.Users {
		if f.Users[i].Name == userName {
			if err := f.Users[i].User.apply(&c, at); err != nil {
				return c, fmt.Errorf("user %s: %w", userName, err)
			}
			return c, nil
		}
	}
	return c, fmt.Errorf("there is no user %q", userName)
}

// apply has a configuration ask as that user.
func (u *user) apply(c *k8sstore.Config, at *cluster) error {
	switch {
	case u.Username != "":
		return errors.New("user and password are not supported, nor does Kubernetes take them any more")
	case u.As != "":
		return errors.New("to act as another (as) is not supported")
	case u.AuthProvider != nil:
		return errors.New("auth-provider is not supported, nor does Kubernetes have it any more: use an exec plugin")
	}
	if u.Cert+u.CertData != "" {
		load := func() (*tls.Certificate, error) {
			cert, err1 := content(u.CertData, u.Cert)
			key, err2 := content(u.KeyData, u.Key)
			if err := cmp.Or(err1, err2); err != nil {
				return nil, fmt.Errorf("client-certificate: %w", err)
			}
			pair, err := tls.X509KeyPair(cert, key)
			return &pair, err
		}
		if _, err := load(); err != nil {
			return err
		}
		// Read again for each connection: files are replaced before the certificate ends.
		c.TLS.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	}
	switch {
	case u.TokenFile != "":
		c.Token = k8sstore.FileToken(u.TokenFile)
	case u.Token != "":
		c.Token = func(context.Context, string) (string, error) { return u.Token, nil }
	case u.Exec != nil:
		return u.Exec.apply(c, at)
	}
	return nil
}

// content returns what is given as base 64, or else stands in the file.
func content(data, path string) ([]byte, error) {
	if data != "" {
		return base64.StdEncoding.DecodeString(data)
	}
	if path == "" {
		return nil, errors.New("it has neither a file nor data")
	}
	return os.ReadFile(path)
}
