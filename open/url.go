package open

import (
	"maps"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// address is a store URL in parts.
type address struct {
	scheme         string
	user, password string
	hosts          []string   // HOST:PORT
	namespace      string     // of Kubernetes
	path           string     // without slashes around it
	query          url.Values // what has not been taken yet
	err            error      // the first thing that is wrong with the options
}

func (a address) secure() bool    { return kinds[a.scheme].secure }
func (a address) onSocket() bool  { return a.scheme == "etcd+unix" }
func (a address) example() string { return kinds[a.scheme].example }

// parse takes a URL apart. By hand, since net/url takes one host only and puts passwords into its
// errors.
func parse(rawURL string) (a address, err error) {
	scheme, rest, ok := strings.Cut(rawURL, "://")
	if _, known := kinds[scheme]; !known {
		if strings.HasPrefix(rawURL, "embedded:") {
			return a, bad("embedded: is the program's own store: run 'primacy dev', and use the URL that it prints")
		}
		if !ok || strings.ContainsAny(scheme, ":/@ ") { // no scheme at all, and perhaps half a password
			return a, bad("it has no scheme: use etcd://HOST:2379")
		}
		return a, bad("unknown scheme %q: use %s", scheme, schemesText())
	}
	a.scheme = scheme
	rest, rawQuery, _ := strings.Cut(rest, "?")
	authority, path, _ := strings.Cut(rest, "/")
	// The part of a password before an unescaped / or ? would be taken for a host, and hosts are
	// named in errors.
	if strings.Contains(path+rawQuery, "@") {
		return a, bad("there is an @ after the first / or ?: in user and password write / as %%2F and ? as %%3F, elsewhere @ as %%40")
	}
	if authority, err = a.login(authority); err != nil {
		return a, err
	}
	var err1, err2 error
	a.path, err1 = url.PathUnescape(strings.Trim(path, "/"))
	a.query, err2 = url.ParseQuery(rawQuery)
	if err1 != nil || err2 != nil {
		return a, bad("what follows the hosts, or the options after ?, have a %% that is not followed by two hex digits, or a semicolon")
	}
	switch {
	case a.onSocket():
		err = a.checkSocket(authority)
	case a.scheme == kubernetesScheme:
		err = a.readNamespace(authority)
	default:
		err = a.readHosts(authority)
	}
	if err != nil {
		return a, err
	}
	if a.scheme == kubernetesScheme {
		return a, a.err // its credentials are the pod's or the kubeconfig's
	}
	if password, ok := a.secret("password-file"); ok {
		a.password = password
	}
	return a, a.err
}

func schemesText() string {
	return strings.Join(Schemes[:len(Schemes)-1], "://, ") + ":// or " + Schemes[len(Schemes)-1] + "://"
}

// login takes user and password off and returns what follows them.
func (a *address) login(authority string) (hosts string, err error) {
	i := strings.LastIndex(authority, "@")
	if i < 0 {
		return authority, nil
	}
	user, password, _ := strings.Cut(authority[:i], ":")
	var err1, err2 error
	a.user, err1 = url.PathUnescape(user)
	a.password, err2 = url.PathUnescape(password)
	if err1 != nil || err2 != nil {
		return "", bad("user or password has a %% that is not followed by two hex digits")
	}
	return authority[i+1:], nil
}

// longestSocket is how many bytes of a path the system takes for a socket; a zero follows them.
const longestSocket = len(syscall.RawSockaddrUnix{}.Path) - 1

// checkSocket says what is wrong with a URL that names a socket by its path.
func (a *address) checkSocket(authority string) error {
	switch n := len("/" + a.path); {
	case authority != "" || a.user != "" || a.password != "" || a.path == "":
		return bad("it must name a socket by its whole path, and nothing else: use %s", a.example())
	case n > longestSocket:
		return bad("the path of the socket has %d bytes, and the system takes %d: choose a shorter one", n,
			longestSocket)
	}
	return nil
}

func (a *address) readHosts(list string) error {
	if list == "" && a.query.Has("host") { // a socket of PostgreSQL, as libpq names it
		return nil
	}
	for _, h := range strings.Split(list, ",") {
		h, err := a.host(h)
		if err != nil {
			return err
		}
		a.hosts = append(a.hosts, h)
	}
	return nil
}

// host makes HOST:PORT of HOST[:PORT]. Errors do not quote it: where the @ was forgotten it is user
// and password.
func (a *address) host(host string) (string, error) {
	name, port := host, kinds[a.scheme].port
	if i := strings.LastIndex(host, ":"); i > strings.LastIndex(host, "]") {
		name, port = host[:i], host[i+1:]
	}
	if name == "" {
		return "", bad("it names no host: use %s", a.example())
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", bad("what follows the colon after a host is not a port: use %s", a.example())
	}
	ip6, bracket := strings.CutPrefix(name, "[")
	_, err := netip.ParseAddr(strings.TrimSuffix(ip6, "]"))
	odd := strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || strings.ContainsRune(`"#%:;<>@[\]^{|}`, r) || r == 0x7f })
	if bracket && (err != nil || !strings.HasSuffix(name, "]")) || !bracket && odd {
		return "", bad("a host is not a name or an address: use %s, with [brackets] around IPv6", a.example())
	}
	return net.JoinHostPort(strings.Trim(name, "[]"), port), nil
}

// take removes an option from the query and returns its last value.
func (a *address) take(key string) (value string, ok bool) {
	if values, ok := a.query[key]; ok {
		delete(a.query, key)
		return values[len(values)-1], true
	}
	return "", false
}

// fail notes the first thing that is wrong with the options; rest returns it.
func (a *address) fail(format string, args ...any) {
	if a.err == nil {
		a.err = bad(format, args...)
	}
}

// flag takes an option that is true or false.
func (a *address) flag(key string, unsaid bool) bool {
	v, ok := a.take(key)
	if !ok {
		return unsaid
	}
	on, err := strconv.ParseBool(v)
	if err != nil {
		a.fail("%s is %q: use true or false", key, v)
	}
	return on
}

// number takes an option that is a whole number from 0 to top, 0 where it is not given.
func (a *address) number(key string, top int) int {
	v, ok := a.take(key)
	if !ok {
		return 0
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 0 || n > top {
		a.fail("%s is %q: use a number from 0 to %d", key, v, top)
	}
	return n
}

// duration takes an option that is a positive duration, 0 where it is not given.
func (a *address) duration(key string) time.Duration {
	v, ok := a.take(key)
	if !ok {
		return 0
	}
	d, err := time.ParseDuration(v)
	if err != nil || d <= 0 {
		a.fail("%s is %q: use a duration such as 30s", key, v)
	}
	return d
}

// secret takes an option that names a file, and returns its content without the end of the last
// line.
func (a *address) secret(key string) (text string, ok bool) {
	file, ok := a.take(key)
	if !ok {
		return "", false
	}
	b, err := os.ReadFile(file)
	if err != nil {
		a.fail("%s: %v", key, err)
	}
	return strings.TrimRight(string(b), "\r\n"), true
}

// rest returns the first error of the options, among which those that nobody took are.
func (a *address) rest(known string) error {
	for _, key := range slices.Sorted(maps.Keys(a.query)) {
		a.fail("unknown option %q: use %s", key, known)
	}
	return a.err
}
