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

// guard decides who may ask.
type guard struct {
	token string   // empty: none is asked for
	hosts []string // by which this server may be called
	uids  []int    // that may use the unix socket
}

var crossOrigin = http.NewCrossOriginProtection()

// admits says whether the peer may ask. It answers where it may not.
func (g guard) admits(w http.ResponseWriter, r *http.Request) bool {
	c := connOf(r)
	if c != nil && c.unix {
		if !g.admitsUser(c.uid) {
			peerRefused.Write(w, "user %d may not use this socket; it is for user %d (see --allow-uid)", c.uid,
				os.Getuid())
			return false
		}
		return true // no web page reaches it
	}
	switch {
	case !g.answersTo(r.Host):
		hostRefused.Write(w, "the request is for host %q; name it with --allow-host if that is this server", r.Host)
	case crossOrigin.Check(r) != nil, reads(r), r.Host == "" && r.Header.Get("Origin") != "":
		crossSite.Write(w, "the request comes from a page of %q", r.Header.Get("Origin"))
	case !g.knows(r):
		w.Header().Set("WWW-Authenticate", `Bearer realm="primacy"`)
		unauthorized.Write(w, "send the header Authorization: Bearer TOKEN")
	default:
		return true
	}
	return false
}

// admitsUser says whether a user may use the unix socket.
func (g guard) admitsUser(uid int) bool {
	return uid == 0 || uid == os.Getuid() || slices.Contains(g.uids, uid)
}

// reads says whether a page of another site reads: it sees nothing of the answer, but each stream
// that it opens is one less for clients. Somebody who follows a link from there may.
func reads(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return (site == "cross-site" || site == "same-site") && r.Header.Get("Sec-Fetch-Dest") != "document"
}

// answersTo says whether the request is for this server. A page whose name was bound to our address
// by its own DNS (rebinding) asks for that name; an address cannot be bound. Who sends no Host at
// all is no browser.
func (g guard) answersTo(host string) bool {
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
	return slices.ContainsFunc(g.hosts, func(h string) bool { return strings.EqualFold(h, host) })
}

// knows compares the bearer token, in the same time whatever is wrong with it.
func (g guard) knows(r *http.Request) bool {
	if g.token == "" {
		return true
	}
	got, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	want, have := sha256.Sum256([]byte(g.token)), sha256.Sum256([]byte(got))
	return subtle.ConstantTimeCompare(want[:], have[:]) == 1 && ok
}
