package k8sstore

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// api is the API server, as far as Leases of one namespace go. It is the register.
type api struct {
	base      *url.URL
	namespace string
	prefix    string
	token     TokenSource
	warnings  []string

	// calls carries all but watches. A request that is given up must not leave its connection to
	// the next one: so ours speaks HTTP/1.1 there, which closes it, and a renewal after a cut does
	// not wait until TCP tries again. A watch would hold a connection: ours share one by HTTP/2,
	// which is asked whether it lives.
	calls, watches *http.Client
	own            bool // the clients are ours

	mu      sync.Mutex
	allowed map[string]bool      // verbs that were carried out
	denied  map[string]time.Time // since when a verb is refused that was allowed before
	known   bool                 // the server knew who asks
}

func newAPI(c Config) (*api, error) {
	base, err := baseURL(c.URL)
	if err != nil {
		return nil, err
	}
	a := &api{base: base, namespace: c.Namespace, prefix: c.Prefix, token: c.Token,
		allowed: map[string]bool{}, denied: map[string]time.Time{}}
	if a.prefix == "" {
		a.prefix = "primacy"
	}
	if !label.MatchString(a.namespace) {
		return nil, fmt.Errorf("%q is no name of a namespace", a.namespace)
	}
	if !label.MatchString(a.prefix) || len(a.prefix) > 40 {
		return nil, fmt.Errorf("the prefix %q is not 1 to 40 of a-z 0-9 -", a.prefix)
	}
	if ip := net.ParseIP(base.Hostname()); base.Scheme == "http" && base.Hostname() != "localhost" && !ip.IsLoopback() {
		a.warnings = append(a.warnings, "the API server is asked without TLS: whoever is on the way can read "+
			"the token, and forge renewals")
	}
	if c.Client != nil {
		a.calls, a.watches = guarded(c.Client), guarded(c.Client)
		return a, nil
	}
	if c.TLS != nil && c.TLS.InsecureSkipVerify {
		a.warnings = append(a.warnings, "the API server's certificate is not looked at: whoever is on the way "+
			"can read the token, and forge renewals")
	}
	a.own, a.calls, a.watches = true, guarded(&http.Client{Transport: callTransport(c.TLS)}),
		guarded(&http.Client{Transport: watchTransport(c.TLS)})
	return a, nil
}

// guarded returns a client like c, which follows no redirects (a write would become a read) and has
// no time limit but the context's (which a watch would meet).
func guarded(c *http.Client) *http.Client {
	return &http.Client{Transport: c.Transport, Jar: c.Jar,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

func callTransport(config *tls.Config) *http.Transport {
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: config.Clone(), DialContext: dial,
		TLSNextProto:        map[string]func(string, *tls.Conn) http.RoundTripper{}, // no HTTP/2
		TLSHandshakeTimeout: 10 * time.Second, MaxIdleConnsPerHost: 32, IdleConnTimeout: time.Minute,
	}
}

func watchTransport(config *tls.Config) *http.Transport {
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: config.Clone(), DialContext: dial, ForceAttemptHTTP2: true,
		TLSHandshakeTimeout: 10 * time.Second, IdleConnTimeout: time.Minute,
		HTTP2: &http.HTTP2Config{SendPingTimeout: 3 * time.Second, PingTimeout: 3 * time.Second},
	}
}

var dial = (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 5 * time.Second}).DialContext

func (a *api) close() {
	if a.own {
		a.calls.CloseIdleConnections()
		a.watches.CloseIdleConnections()
	}
}

// call is one request.
type call struct {
	verb   string // as a role names it
	method string
	path   string // below the server's
	query  url.Values
	body   any // nil: none
	name   string
}

// leases returns a call for the Lease of that name, "" for all of them.
func (a *api) leases(verb, method, name string) call {
	path := "/apis/coordination.k8s.io/v1/namespaces/" + a.namespace + "/leases"
	if name != "" {
		path += "/" + name
	}
	return call{verb: verb, method: method, path: path, name: name, query: url.Values{}}
}

// largestAnswer is how many bytes of one answer are read. A page of a list is far smaller.
const largestAnswer = 256 << 20

// do makes a call and decodes what it answers into to. The code is below 300, or one of those that
// mean something to each verb: 404 of a Lease, 409, 410.
func (a *api) do(ctx context.Context, c call, to any) (code int, err error) {
	resp, err := a.send(ctx, a.calls, c)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		return resp.StatusCode, nil
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, largestAnswer))
	if err != nil {
		return 0, a.failed(ctx, c, err)
	}
	if to != nil {
		if err := json.Unmarshal(text, to); err != nil {
			return 0, a.errorf(c, "the answer is not JSON as of an API server: %v", err)
		}
	}
	return resp.StatusCode, nil
}

// send sends a call, and returns an answer whose body was not read yet if its code is below 300.
// What the server asks to be repeated (429, 503 with Retry-After) is repeated after the time it
// says, until ctx ends. Where it does not know who asks it is asked once more, with another token,
// over another connection, and with the certificate that there is now.
func (a *api) send(ctx context.Context, client *http.Client, c call) (*http.Response, error) {
	refused, again, tries := "", false, 0
	unknown := false // an earlier try may have been carried out: what comes after it is not final
	for {
		token, resp, err := a.once(ctx, client, c, refused)
		if err != nil {
			return nil, err
		}
		switch code := resp.StatusCode; {
		case code < 300:
			a.accepted(c)
			return resp, nil
		case code == http.StatusUnauthorized && !again && (a.token != nil || a.own):
			again = true
			refused = token
			if a.own { // its connection was made with a certificate that has ended, perhaps
				resp.Body.Close()
				client.CloseIdleConnections()
			} else {
				drain(resp)
			}
			continue
		case code == http.StatusTooManyRequests || code == http.StatusServiceUnavailable:
			after, err := strconv.Atoi(resp.Header.Get("Retry-After"))
			if err != nil || after < 0 {
				return nil, a.refusal(c, resp)
			}
			why := a.refusal(c, resp)
			unknown = unknown || code == http.StatusServiceUnavailable // said by a proxy, perhaps
			tries++
			pause := max(time.Duration(min(after, 3600))*time.Second,
				storeutil.Backoff(tries, 50*time.Millisecond, time.Second)) // it may say 0
			if storeutil.Sleep(ctx, pause) != nil {
				return nil, why
			}
			continue
		}
		st := statusOf(resp)
		if meaningful(c, resp.StatusCode, st) {
			a.accepted(c)
			return resp, nil
		}
		err = a.refuse(c, resp.StatusCode, st)
		if unknown && driver.IsFinal(err) {
			err = fmt.Errorf("it may have happened: %v", err)
		}
		return nil, err
	}
}

// once sends a call once, with a token that is not the refused one where there is another.
func (a *api) once(ctx context.Context, client *http.Client, c call, refused string) (
	token string, resp *http.Response, err error,
) {
	var body io.Reader
	if c.body != nil {
		text, err := json.Marshal(c.body)
		if err != nil {
			return "", nil, a.errorf(c, "%v", err)
		}
		body = bytes.NewReader(text)
	}
	u := *a.base
	u.Path = a.base.JoinPath(c.path).Path
	u.RawQuery = c.query.Encode()
	req, err := http.NewRequestWithContext(ctx, c.method, u.String(), body)
	if err != nil {
		return "", nil, a.errorf(c, "%v", err)
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "primacy")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if a.token != nil {
		if token, err = a.token(ctx, refused); err != nil {
			return "", nil, a.errorf(c, "there is no token: %w", err)
		}
		if token != "" { // a source may have a certificate instead
			req.Header.Set("Authorization", "Bearer "+token)
		}
	}
	if resp, err = client.Do(req); err != nil {
		return token, nil, a.failed(ctx, c, err)
	}
	return token, resp, nil
}

func drain(resp *http.Response) {
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10)
	resp.Body.Close()
}

// accepted notes that the server knows who asks and lets him do the verb.
func (a *api) accepted(c call) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.known, a.allowed[c.verb] = true, true
	delete(a.denied, c.verb)
}

// failed is the error of a call that got no answer.
func (a *api) failed(ctx context.Context, c call, err error) error {
	if a.own {
		a.calls.CloseIdleConnections() // those beside it may be as dead
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err // which names the whole address once more
	}
	if cause := ctx.Err(); cause != nil {
		err = cause
	}
	var cert *tls.CertificateVerificationError
	if errors.As(err, &cert) {
		return a.firstly(a.errorf(c, "its certificate is not trusted: %w: is the certificate authority (ca) the "+
			"right one?", cert.Err))
	}
	return a.errorf(c, "%w", err)
}

// errorf says what was asked of whom.
func (a *api) errorf(c call, format string, args ...any) error {
	return fmt.Errorf("%s: %s: %w", a.base.Host, c.what(), fmt.Errorf(format, args...))
}

func (c call) what() string {
	if c.name != "" {
		return c.verb + " lease " + c.name
	}
	return c.verb + " " + c.kind()
}

// kind is what the call is about.
func (c call) kind() string {
	if c.verb == "ask" {
		return c.path
	}
	return "leases"
}
