//go:build linux

package torture

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/k8stest"
	"github.com/primacy-go/primacy/k8sstore"
)

// kubernetesTTL leaves an API server and the etcd below it time for a write on a busy machine.
const kubernetesTTL = 4 * time.Second

// onKubernetes is a real API server on three members of etcd, which have most of the troubles. The
// server reaches each by a proxy.
func onKubernetes() *storeUnder {
	return &storeUnder{name: "k8s", long: true, timed: true, ttl: kubernetesTTL, spare: 2 * kubernetesTTL,
		start: func(t testing.TB) *installed {
			etcd, dir := etcdtest.StartCluster(t, 3, etcdtest.Options{}), t.TempDir()
			var links []*etcdtest.Proxy
			var endpoints []string
			for _, m := range etcd.Members {
				p := etcdtest.NewProxy(t, m.Addr())
				links, endpoints = append(links, p), append(endpoints, "http://"+p.Addr())
			}
			srv := k8stest.StartOn(t, endpoints...)
			leader := func(rng *rand.Rand) testServer { return etcdLeader(etcd, rng) }
			return &installed{servers: []string{srv.Addr},
				troubles: append(troublesOf(t, "the API server", srv),
					kill(t, "kill etcd's leader below the API server", false, leader),
					stop("freeze etcd's leader below the API server", false, leader),
					trouble{"etcd's leader moved below the API server", false, func(rng *rand.Rand) func() {
						_ = etcd.Move(etcd.Members[rng.IntN(3)], kubernetesTTL) // or it is it already
						return func() {}
					}},
					trouble{"a slow etcd below the API server", false, func(rng *rand.Rand) func() {
						d := between(rng, kubernetesTTL/40, kubernetesTTL/8)
						for _, p := range links {
							p.Delay(d, etcdtest.Down)
						}
						return func() {
							for _, p := range links {
								p.Heal()
							}
						}
					}},
					trouble{"no etcd below the API server", true, of(etcd.Members, 2, (*etcdtest.Server).Stop,
						(*etcdtest.Server).Cont)}),
				url: func(servers []string) string {
					return "k8s://?kubeconfig=" + url.QueryEscape(writeKubeconfig(t, dir, srv, servers[0]))
				}}
		}}
}

// etcdLeader is the cluster's leader; any member where there is none just now.
func etcdLeader(c *etcdtest.Cluster, rng *rand.Rand) *etcdtest.Server {
	if l := c.Leader(); l != nil {
		return l
	}
	return c.Members[rng.IntN(len(c.Members))]
}

// kubeconfig is what the program reads as YAML, and the library's processes below as JSON.
type kubeconfig struct {
	CurrentContext string      `json:"current-context"`
	Contexts       []kubeNamed `json:"contexts"`
	Clusters       []kubeNamed `json:"clusters"`
	Users          []kubeNamed `json:"users"`
}

type kubeNamed struct {
	Name    string            `json:"name"`
	Context map[string]string `json:"context,omitempty"`
	Cluster map[string]string `json:"cluster,omitempty"`
	User    map[string]string `json:"user,omitempty"`
}

// writeKubeconfig writes how the server is reached at addr, and returns the file.
func writeKubeconfig(t testing.TB, dir string, srv *k8stest.Server, addr string) string {
	text, err := json.Marshal(kubeconfig{
		CurrentContext: "here",
		Contexts: []kubeNamed{{Name: "here", Context: map[string]string{"cluster": "here", "user": "me",
			"namespace": k8stest.Namespace}}},
		Clusters: []kubeNamed{{Name: "here", Cluster: map[string]string{"server": "https://" + addr,
			"certificate-authority-data": base64.StdEncoding.EncodeToString(srv.CA)}}},
		Users: []kubeNamed{{Name: "me", User: map[string]string{"token": k8stest.UserToken}}},
	})
	if err != nil {
		t.Error(err)
	}
	name := filepath.Join(dir, strings.ReplaceAll(addr, ":", "-")+".json")
	half := fmt.Sprintf("%s.%x", name, rand.Uint64()) // others may read it meanwhile
	if err := os.WriteFile(half, text, 0o600); err != nil {
		t.Error(err)
	}
	if err := os.Rename(half, name); err != nil {
		t.Error(err)
	}
	return name
}

// readKubeconfig is what the program's reader of kubeconfigs is to the program.
func readKubeconfig(file, _ string) (c k8sstore.Config, err error) {
	var k kubeconfig
	text, err := os.ReadFile(file)
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(text, &k); err != nil {
		return c, err
	}
	cluster, pool := k.Clusters[0].Cluster, x509.NewCertPool()
	ca, err := base64.StdEncoding.DecodeString(cluster["certificate-authority-data"])
	if err != nil || !pool.AppendCertsFromPEM(ca) {
		return c, fmt.Errorf("%s: the certificate authority: %v", file, err)
	}
	return k8sstore.Config{URL: cluster["server"], Namespace: k.Contexts[0].Context["namespace"],
		TLS:   &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
		Token: func(context.Context, string) (string, error) { return k.Users[0].User["token"], nil }}, nil
}
