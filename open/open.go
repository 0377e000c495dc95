// Package open turns a store URL into a store, for programs that want all of them. Who imports it links every store's client; a program
// that knows its store imports just that one.
//
//	etcd://[USER[:PASSWORD]@]HOST:PORT[,HOST:PORT…][/PREFIX]   without TLS
//	etcds://…                                                  with TLS
//
// Options follow as a query: ca=FILE (certificate authority), cert=FILE and key=FILE (this client's certificate), server-name=NAME,
// password-file=FILE (instead of a password in the URL). PREFIX is put before every key, default "primacy".
package open

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/etcdstore"
)

// ErrURL says that a store URL cannot be used. Passwords are not in its text.
var ErrURL = errors.New("not a store URL")

// Open connects to the store that rawURL names. It tries until ctx ends; then the error names the endpoints. A URL that cannot work
// is an ErrURL, a store that refuses us a driver.ErrRefused. Close the store after the sessions on it.
func Open(ctx context.Context, rawURL string) (driver.Store, error) {
	scheme, rest, ok := strings.Cut(rawURL, "://")
	if !ok {
		return nil, bad("it has no scheme: use etcd://HOST:2379")
	}
	switch scheme {
	case "etcd", "etcds":
		c, err := etcdConfig(scheme == "etcds", rest)
		if err != nil {
			return nil, err
		}
		return etcdstore.Open(ctx, c)
	}
	return nil, bad("unknown scheme %q: use etcd:// or etcds://", scheme)
}

func bad(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrURL, fmt.Sprintf(format, args...))
}

// etcdConfig reads what follows the scheme. By hand, since net/url takes one host only and puts passwords into its errors.
func etcdConfig(secure bool, rest string) (etcdstore.Config, error) {
	var c etcdstore.Config
	rest, rawQuery, _ := strings.Cut(rest, "?")
	authority, path, _ := strings.Cut(rest, "/")
	if i := strings.LastIndex(authority, "@"); i >= 0 {
		user, password, _ := strings.Cut(authority[:i], ":")
		authority = authority[i+1:]
		var err1, err2 error
		c.Username, err1 = url.PathUnescape(user)
		c.Password, err2 = url.PathUnescape(password)
		if err1 != nil || err2 != nil {
			return c, bad("user or password has a %% that is not followed by two hex digits")
		}
	}
	for _, h := range strings.Split(authority, ",") {
		if h == "" {
			return c, bad("it names no host: use etcd://HOST:2379")
		}
		c.Endpoints = append(c.Endpoints, endpoint(secure, h))
	}
	if path = strings.Trim(path, "/"); path != "" {
		c.Prefix = path + "/"
	}
	query, err := url.ParseQuery(rawQuery)
	if err != nil {
		return c, bad("the options after ? cannot be read")
	}
	return c, options(&c, secure, query)
}

func endpoint(secure bool, host string) string {
	if !strings.Contains(host[strings.LastIndex(host, "]")+1:], ":") {
		host += ":2379"
	}
	if secure {
		return "https://" + host
	}
	return "http://" + host
}

func options(c *etcdstore.Config, secure bool, query url.Values) error {
	var t tlsFiles
	for key, values := range query {
		v := values[len(values)-1]
		switch key {
		case "ca":
			t.ca = v
		case "cert":
			t.cert = v
		case "key":
			t.key = v
		case "server-name":
			t.serverName = v
		case "password-file":
			b, err := os.ReadFile(v)
			if err != nil {
				return bad("password-file: %v", err)
			}
			c.Password = strings.TrimRight(string(b), "\r\n")
		default:
			return bad("unknown option %q: use ca, cert, key, server-name or password-file", key)
		}
	}
	if !secure {
		if t != (tlsFiles{}) {
			return bad("certificates need TLS: use etcds://")
		}
		return nil
	}
	var err error
	c.TLS, err = t.config()
	return err
}
