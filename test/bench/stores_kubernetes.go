package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/k8stest"
	"github.com/primacy-go/primacy/k8sstore"
)

func init() {
	ours("primacy on Kubernetes", "kubernetes", func(_ context.Context, endpoints []string) (driver.Store, error) {
		url, ca, err := apiServer(endpoints)
		if err != nil {
			return nil, err
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(ca)
		return k8sstore.New(k8sstore.Config{URL: url, Namespace: k8stest.Namespace,
			TLS:   &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
			Token: func(context.Context, string) (string, error) { return k8stest.UserToken, nil }})
	})
}

func startKubernetes(e *Env, _ EnvOptions) (servers, error) {
	s := k8stest.StartReal(e.box)
	e.kube = s
	ca := filepath.Join(e.box.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, s.CA, 0o600); err != nil {
		return servers{}, err
	}
	return servers{text: "kube-apiserver " + k8stest.Version + " and etcd, one of each,", addrs: []string{s.Addr},
		at: func(addr string) string { return "https://" + addr + " " + ca }}, nil
}

// apiServer returns the URL and the certificate authority of what contenders dial.
func apiServer(endpoints []string) (url string, ca []byte, err error) {
	url, file, ok := strings.Cut(endpoints[0], " ")
	if !ok {
		return "", nil, errors.New("no API server: " + endpoints[0])
	}
	ca, err = os.ReadFile(file)
	return url, ca, err
}

// asked are the requests for Leases that the API server has answered; a watch, when it ended.
type asked struct{ writes, reads, watches float64 }

// leases counts them. Every 10 s one write and one read are the API server's own.
func (e *Env) leases() (n asked, err error) {
	defer catch(&err)
	for lines := bufio.NewScanner(bytes.NewReader(e.kube.Do("GET", "/metrics", ""))); lines.Scan(); {
		name, rest, _ := strings.Cut(lines.Text(), "} ")
		metric, labels, _ := strings.Cut(name, "{")
		if metric != "apiserver_request_total" || label(labels, "resource") != "leases" {
			continue
		}
		v, err := strconv.ParseFloat(rest, 64)
		if err != nil {
			return n, fmt.Errorf("metrics of the API server: %w", err)
		}
		switch label(labels, "verb") {
		case "GET", "LIST":
			n.reads += v
		case "WATCH":
			n.watches += v
		default:
			n.writes += v
		}
	}
	return n, nil
}
