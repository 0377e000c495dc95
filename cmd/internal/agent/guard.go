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

// Guard decides who may ask.
type Guard struct {
	Token string   // empty: none is asked for
	Hosts []string // by which this server may be called, beside localhost and addresses
	UIDs  []int    // that may use the unix socket, beside this process's own and root
}

var crossOrigin = http.NewCrossOriginProtection()

// admits says whether the peer may ask. It answers where it may not.
func (g Guard) admits(w http.ResponseWriter, r *http.Request) bool {
	if !g.Reaches(w, r) {
		return false
	}
	if _, user := Peer(r); !user && !g.knows(r) {
		w.Header().Set("WWW-Authenticate", `Bearer realm="primacy"`)
		unauthorized.Write(w, "send the header Authorization: Bearer TOKEN")
		return false
	}
	return true
}

// Reaches says whether a request may come in so far that it is asked for its token: it is of a user
// who may use the socket, or for this server and from no page of another site. It answers where it
// may not.
func (g Guard) Reaches(w http.ResponseWriter, r *http.Request) bool {
	if uid, user := Peer(r); user {
		if !g.admitsUser(uid) {
			peerRefused.Write(w, "user %d may not use this socket; it is for user %d (see --allow-uid)", uid,
				os.Getuid())
			return false
		}
		if !ofBrowser(r) && !boundByDNS(r.Host) {
			return true
		}
		// A web page reaches a socket only where somebody forwards a port to it. What holds for
		// that port holds for the page then.
	}
	switch {
	case !g.answersTo(r.Host):
		hostRefused.Write(w, "the request is for host %q; name it with --allow-host if that is this server", r.Host)
	case crossOrigin.Check(r) != nil, reads(r), r.Host == "" && r.Header.Get("Origin") != "":
		crossSite.Write(w, "the request comes from a page of %q", r.Header.Get("Origin"))
	default:
		return true
	}
	return false
}

// ofBrowser says whether a browser shows itself. A form and a script that writes always send
// Origin; a script that only reads can leave all of these out.
func ofBrowser(r *http.Request) bool {
	for _, h := range []string{"Origin", "Sec-Fetch-Site", "Accept-Language"} {
		if r.Header.Get(h) != "" {
			return true
		}
	}
	return strings.HasPrefix(r.Header.Get("User-Agent"), "Mozilla/")
}

// boundByDNS says whether a host looks like a name of DNS, or like that of a port. Who asks a
// socket has neither: he writes localhost, any word, or its path with each slash as %2F.
func boundByDNS(host string) bool {
	return strings.ContainsAny(host, ".:") && !strings.Contains(host, "%")
}

// Peer returns the user of a request that came by a unix socket, and whether it did.
func Peer(r *http.Request) (uid int, ok bool) {
	if c := connOf(r); c != nil && c.unix {
		return c.uid, true
	}
	return 0, false
}

// admitsUser says whether a user may use the unix socket.
func (g Guard) admitsUser(uid int) bool {
	return uid == 0 || uid == os.Getuid() || slices.Contains(g.UIDs, uid)
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
func (g Guard) answersTo(host string) bool {
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
	return slices.ContainsFunc(g.Hosts, func(h string) bool { return strings.EqualFold(h, host) })
}

// knows says whether a request bears the token.
func (g Guard) knows(r *http.Request) bool {
	got, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return g.Token == "" || SameToken(g.Token, got) && ok
}

// SameToken compares a token with the one that is wanted, in the same time whatever is wrong with
// it.
func SameToken(wanted, got string) bool {
	want, have := sha256.Sum256([]byte(wanted)), sha256.Sum256([]byte(got))
	return subtle.ConstantTimeCompare(want[:], have[:]) == 1
}
