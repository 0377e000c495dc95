package agent

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
)

// ServeHTTP answers the API, after it has looked at who asks.
func (a *Agent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	if a.trusts(w, r) {
		a.router.ServeHTTP(w, r)
	}
}

var crossOrigin = http.NewCrossOriginProtection()

// trusts answers, and says no, where the peer may not ask.
func (a *Agent) trusts(w http.ResponseWriter, r *http.Request) bool {
	c := connOf(r)
	if c != nil && c.unix {
		if c.uid != 0 && c.uid != os.Getuid() && !slices.Contains(a.o.UIDs, c.uid) {
			peerRefused.Write(w, "user %d may not use this socket; it is for user %d (see --allow-uid)", c.uid, os.Getuid())
			return false
		}
		return true // no web page reaches it
	}
	switch {
	case !a.answersTo(r.Host):
		hostRefused.Write(w, "the request is for host %q; name it with --allow-host if that is this server", r.Host)
	case crossOrigin.Check(r) != nil, reads(r), r.Host == "" && r.Header.Get("Origin") != "":
		crossSite.Write(w, "the request comes from a page of %q", r.Header.Get("Origin"))
	case !a.knows(r):
		w.Header().Set("WWW-Authenticate", `Bearer realm="primacy"`)
		unauthorized.Write(w, "send the header Authorization: Bearer TOKEN")
	default:
		return true
	}
	return false
}

// reads says whether a page of another site reads: it sees nothing of the answer, but each stream that it opens is one less for clients. Somebody who
// follows a link from there may.
func reads(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return (site == "cross-site" || site == "same-site") && r.Header.Get("Sec-Fetch-Dest") != "document"
}

// answersTo says whether the request is for this server. A page whose name was bound to our address by its own DNS (rebinding) asks
// for that name; an address cannot be bound. Who sends no Host at all is no browser.
func (a *Agent) answersTo(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if inside, ok := strings.CutPrefix(host, "["); ok {
		host, ok = strings.CutSuffix(inside, "]")
		return ok && net.ParseIP(host) != nil
	}
	if host == "" || host == "localhost" || net.ParseIP(host) != nil {
		return true
	}
	return slices.ContainsFunc(a.o.Hosts, func(h string) bool { return strings.EqualFold(h, host) })
}

// knows compares the bearer token, in the same time whatever is wrong with it.
func (a *Agent) knows(r *http.Request) bool {
	if a.o.Token == "" {
		return true
	}
	got, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	want, have := sha256.Sum256([]byte(a.o.Token)), sha256.Sum256([]byte(got))
	return subtle.ConstantTimeCompare(want[:], have[:]) == 1 && ok
}
