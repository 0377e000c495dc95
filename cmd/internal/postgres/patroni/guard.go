package patroni

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"encoding/base64"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// Guard decides who may ask for something. Whoever reaches the API may read.
type Guard struct {
	Token string      // "Authorization: Bearer TOKEN"; empty: none is taken
	Basic string      // USER:PASSWORD, as patronictl sends it; empty: none is taken
	TLS   *tls.Config // nil: none. With ClientCAs a client's certificate is taken too
}

// Open says whether nobody is asked who he is. Then only this machine is obeyed.
func (g Guard) Open() bool { return g.Token == "" && g.Basic == "" && !g.certificates() }

func (g Guard) certificates() bool { return g.TLS != nil && g.TLS.ClientCAs != nil }

var crossOrigin = http.NewCrossOriginProtection()

// admits answers where a request is not to be obeyed.
func (g Guard) admits(w http.ResponseWriter, r *http.Request) bool {
	switch {
	case crossOrigin.Check(r) != nil:
		text(w, http.StatusForbidden, "the request comes from a page of another site")
	case g.Open() && !local(r):
		text(w, http.StatusForbidden, "no authentication is configured for this API: only this machine is obeyed; "+
			"[api] takes token_file, auth_file or client_ca")
	case !g.Open() && !g.knows(r):
		if g.Basic != "" {
			w.Header().Add("WWW-Authenticate", `Basic realm="Patroni"`)
		}
		if g.Token != "" {
			w.Header().Add("WWW-Authenticate", `Bearer realm="primacy"`)
		}
		text(w, http.StatusUnauthorized, "not authenticated")
	default:
		return true
	}
	return false
}

// local says whether the client itself is on this machine. A proxy on this machine speaks for
// others. A page whose name was bound to our address by its own DNS asks for that name.
func local(r *http.Request) bool {
	for _, h := range []string{"Via", "Forwarded", "X-Forwarded-For", "X-Real-Ip"} {
		if r.Header.Get(h) != "" {
			return false
		}
	}
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !at.Addr().Unmap().IsLoopback() {
		return false
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	_, err = netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil || host == "localhost"
}

// knows compares what the request says of its sender, in the same time whatever is wrong with it.
func (g Guard) knows(r *http.Request) bool {
	if g.certificates() && r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		return true
	}
	header := r.Header.Get("Authorization")
	token, ok := strings.CutPrefix(header, "Bearer ")
	bearer := ok && g.Token != "" && same(token, g.Token)
	login, ok := strings.CutPrefix(header, "Basic ")
	return bearer || ok && g.Basic != "" && same(login, base64.StdEncoding.EncodeToString([]byte(g.Basic)))
}

func same(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}
