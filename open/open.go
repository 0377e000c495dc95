// Package open turns a store URL into a store, for programs that want all of them. Who imports it links every store's client; a program
// that knows its store imports just that one.
//
//	etcd://[USER[:PASSWORD]@]HOST:PORT[,HOST:PORT…][/PREFIX]   without TLS
//	etcds://…                                                  with TLS
//
// Options follow as a query: ca=FILE (certificate authority), cert=FILE and key=FILE (this client's certificate), server-name=NAME,
// password-file=FILE (instead of a password in the URL), heartbeat=true (sessions of any TTL have a heartbeat: see etcdstore.Options). PREFIX is put before every key, default "primacy". Write %XX for characters
// that mean something in a URL, in passwords above all: / is %2F, ? is %3F, @ is %40, % is %25.
package open

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/etcdstore"
)

// ErrURL says that a store URL cannot be used. Passwords are not in its text.
var ErrURL = errors.New("not a store URL")

// Open connects to the store that rawURL names. A store that does not answer is waited for until ctx ends, one that
// refuses connections is an error at once; both name the endpoints. A URL that cannot work
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
	if strings.ContainsAny(scheme, ":/@ ") { // no scheme at all, and perhaps half a password
		return nil, bad("it has no scheme: use etcd://HOST:2379")
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
	// The part of a password before an unescaped / or ? would be taken for a host, and hosts are named in errors.
	if strings.Contains(path+rawQuery, "@") {
		return c, bad("there is an @ after the first / or ?: in user and password write / as %%2F and ? as %%3F, elsewhere @ as %%40")
	}
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
		e, err := endpoint(secure, h)
		if err != nil {
			return c, err
		}
		c.Endpoints = append(c.Endpoints, e)
	}
	path, err1 := url.PathUnescape(strings.Trim(path, "/"))
	query, err2 := url.ParseQuery(rawQuery)
	if err1 != nil || err2 != nil {
		return c, bad("the prefix or the options after ? have a %% that is not followed by two hex digits, or a semicolon")
	}
	if path != "" {
		c.Prefix = path + "/"
	}
	if err := options(&c, secure, query); err != nil {
		return c, err
	}
	if (c.Username == "") != (c.Password == "") { // etcd's client would go in as nobody, and say nothing
		return c, bad("user and password go together: use etcd://USER:PASSWORD@HOST:2379, or password-file=FILE for the password")
	}
	return c, nil
}

// endpoint makes etcd's URL of HOST[:PORT]. Errors do not quote it: where the @ was forgotten it is user and password.
func endpoint(secure bool, host string) (string, error) {
	name, port := host, "2379"
	if i := strings.LastIndex(host, ":"); i > strings.LastIndex(host, "]") {
		name, port = host[:i], host[i+1:]
	}
	if name == "" {
		return "", bad("it names no host: use etcd://HOST:2379")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", bad("what follows the colon after a host is not a port: use etcd://HOST:2379")
	}
	ip6, bracket := strings.CutPrefix(name, "[")
	_, err := netip.ParseAddr(strings.TrimSuffix(ip6, "]"))
	odd := strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || strings.ContainsRune(`"#%:;<>@[\]^{|}`, r) || r == 0x7f })
	if bracket && (err != nil || !strings.HasSuffix(name, "]")) || !bracket && odd {
		return "", bad("a host is not a name or an address: use etcd://HOST:2379, with [brackets] around IPv6")
	}
	if secure {
		return "https://" + net.JoinHostPort(strings.Trim(name, "[]"), port), nil
	}
	return "http://" + net.JoinHostPort(strings.Trim(name, "[]"), port), nil
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
		case "heartbeat":
			on, err := strconv.ParseBool(v)
			if err != nil {
				return bad("heartbeat is %q: use true or false", v)
			}
			c.Heartbeat = on
		default:
			return bad("unknown option %q: use ca, cert, key, server-name, password-file or heartbeat", key)
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
