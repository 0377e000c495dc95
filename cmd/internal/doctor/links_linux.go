package doctor

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"time"

	"github.com/primacy-go/primacy/internal/proxy"
	"github.com/primacy-go/primacy/open"
)

// errNames says that TLS keeps our proxies out.
var errNames = errors.New("its servers' certificates have different names, and none that all of them have: give " +
	"one by server-name=")

// errElsewhere says that clients go to addresses which the store tells them, past our proxies.
var errElsewhere = errors.New("its servers tell clients other addresses to go to")

// reach returns the store's URL as candidates use it, and their configuration but for the identity.
// With TLS a proxy is at another address than the certificate says, so a name is sought that every
// server's certificate has.
func (r *run) reach(ctx context.Context) (storeURL, Conf, error) {
	conf := Conf{Store: r.o.URL, Embedded: r.o.Embedded, Name: r.name, TTL: r.o.TTL}
	u, ok := splitURL(r.o.URL)
	if r.o.Embedded != "" || !ok || open.DefaultPort(u.scheme) == "" || u.hosts[0] == "" {
		return u, conf, errNoNetwork
	}
	query, err := url.ParseQuery(u.query)
	if err != nil {
		return u, conf, err
	}
	switch {
	case query.Get("cluster") != "" || query.Has("sentinel"):
		return u, conf, errElsewhere
	case query.Get("sslmode") == "verify-full":
		return u, conf, errNames
	case !open.Secure(u.scheme) || query.Get("server-name") != "":
		return u, conf, nil
	}
	for _, name := range names(u) {
		query.Set("server-name", name)
		named := u
		named.query = query.Encode()
		if r.accepted(ctx, named) {
			return named, conf, nil
		}
	}
	return u, conf, errNames
}

// names are what servers' certificates may have in common.
func names(u storeURL) []string {
	var all []string
	for i := range u.hosts {
		all = append(all, u.name(i))
	}
	all = append(all, "localhost", "127.0.0.1")
	slices.Sort(all[:len(u.hosts)])
	return slices.Compact(all)
}

// accepted reports whether each server answers through a proxy under u's name.
func (r *run) accepted(ctx context.Context, u storeURL) bool {
	for i := range u.hosts {
		l, err := proxy.Listen(u.addr(i))
		if err != nil {
			return false
		}
		one := u
		one.hosts = []string{l.Addr()}
		ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		st, err := open.Open(ctx, one.String())
		cancel()
		if err == nil {
			_ = st.Close()
		}
		l.Close()
		if err != nil {
			return false
		}
	}
	return true
}

// through returns u with its hosts behind links.
func through(u storeURL, links []*proxy.Proxy) storeURL {
	u.hosts = nil
	for _, l := range links {
		u.hosts = append(u.hosts, l.Addr())
	}
	return u
}
