package doctor

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/open"
)

// storeURL is a store URL in parts, as package open reads them:
// scheme://[user@]host,host[/prefix][?query].
type storeURL struct {
	scheme, user string
	hosts        []string
	rest         string // from the first / after the hosts
	query        string // without the ?
}

func splitURL(raw string) (u storeURL, ok bool) {
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok {
		return u, false
	}
	u.scheme = scheme
	rest, u.query, _ = strings.Cut(rest, "?")
	if i := strings.Index(rest, "/"); i >= 0 {
		rest, u.rest = rest[:i], rest[i:]
	}
	if i := strings.LastIndex(rest, "@"); i >= 0 {
		u.user, rest = rest[:i+1], rest[i+1:]
	}
	u.hosts = strings.Split(rest, ",")
	return u, true
}

func (u storeURL) String() string {
	s := u.scheme + "://" + u.user + strings.Join(u.hosts, ",") + u.rest
	if u.query != "" {
		s += "?" + u.query
	}
	return s
}

// name returns the host without its port.
func (u storeURL) name(i int) string {
	name, _, err := net.SplitHostPort(u.hosts[i])
	if err != nil {
		name = u.hosts[i]
	}
	return strings.Trim(name, "[]")
}

// addr returns host:port as it is dialled.
func (u storeURL) addr(i int) string {
	if _, _, err := net.SplitHostPort(u.hosts[i]); err == nil {
		return u.hosts[i]
	}
	return net.JoinHostPort(u.name(i), open.DefaultPort(u.scheme))
}

// loopback reports whether all hosts are this machine.
func (u storeURL) loopback() bool {
	for i := range u.hosts {
		ip, err := netip.ParseAddr(u.name(i))
		if u.name(i) != "localhost" && (err != nil || !ip.IsLoopback()) {
			return false
		}
	}
	return true
}

// secure reports whether nobody on the way can read or forge: the scheme's name says so, or
// PostgreSQL's option.
func (u storeURL) secure(query url.Values) bool {
	mode := query.Get("sslmode")
	return open.Secure(u.scheme) || mode == "require" || mode == "verify-ca" || mode == "verify-full"
}

// secured is how the same store is asked for with TLS.
func (u storeURL) secured() string {
	switch kind, form, _ := strings.Cut(u.scheme, "+"); {
	case strings.HasPrefix(kind, "postgres"):
		return "sslmode=verify-full"
	case form != "":
		return kind + "s+" + form + "://"
	default:
		return kind + "s://"
	}
}

// Public returns a store URL as anybody may see it: without user, password and options. Where it
// cannot be told what is what, only the scheme is left.
func Public(raw string) string {
	u, ok := splitURL(raw)
	switch {
	case !ok:
		kind, _, _ := strings.Cut(raw, ":")
		return kind
	case strings.Contains(strings.Join(u.hosts, ",")+u.rest, "@"), u.user == "" && strings.Contains(u.query, "@"):
		return u.scheme
	}
	for i := range u.hosts {
		if _, port, err := net.SplitHostPort(u.hosts[i]); err == nil {
			if _, err := strconv.ParseUint(port, 10, 16); err != nil {
				return u.scheme // what stands there for a port may be a password
			}
		} else if strings.Count(u.hosts[i], ":") == 1 {
			return u.scheme
		}
	}
	u.user, u.query = "", ""
	return u.String()
}

// Transport says what protects the way to the store that rawURL names. It returns false for a store
// that is not reached over a network.
func Transport(rawURL string) (Check, bool) {
	c := Check{Topic: "transport", Level: driver.Fine}
	u, ok := splitURL(rawURL)
	if !ok || open.DefaultPort(u.scheme) == "" || u.hosts[0] == "" {
		return c, false
	}
	query, _ := url.ParseQuery(u.query)
	cert := query.Has("cert") || query.Has("sslcert")
	who := "no user"
	if u.user != "" {
		who = "a password"
	}
	switch {
	case u.secure(query) && cert:
		c.Found = fmt.Sprintf("TLS, with a certificate of our own and %s", who)
	case u.secure(query):
		c.Found = fmt.Sprintf("TLS, with %s", who)
		if u.user == "" {
			c.Level, c.Advice = driver.Warning,
				"whoever reaches the port may write: ask for client certificates or for a user"
			c.Found += " and no certificate of our own"
		}
	case u.loopback():
		c.Found = "plain text on loopback, with " + who
	default:
		c.Level, c.Found, c.Advice = driver.Warning, "plain text over a network, with "+who,
			"use "+u.secured()+": whoever is on the way can read and forge renewals, and passwords"
	}
	return c, true
}
