package page

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/agent"
)

// login is how a browser, which sends no bearer token with a link or a stream, says that it knows
// the token: once, and by a cookie from then on. The cookie is worth nothing to another process,
// nor to another user of this machine: a browser sends it to any port of the host.
type login struct {
	token  string
	secret []byte
	caller func(*http.Request) int // the user of this machine who asks, -1: nobody knows

	mu  sync.Mutex
	all map[[sha256.Size]byte]*visit // by a hash of the cookie
}

// visit is what lasts from logging in to logging out.
type visit struct {
	ctx  context.Context // ends with it
	end  context.CancelFunc
	till time.Time
	uid  int // who logged in
}

func newLogin(token, secret string) *login {
	return &login{token: token, secret: []byte(secret), caller: agent.Caller, all: map[[sha256.Size]byte]*visit{}}
}

const (
	staysIn    = 12 * time.Hour
	mostVisits = 1000
	mostIn     = 16 << 10 // bytes of a form
)

var errUnsealed = bad(http.StatusForbidden, "This form is not of this page, or of one that has ended since",
	"go back, reload, and try again")

// seal proves to us that a form is one that we made, for what it says and for nothing else: no page
// of another site can know it.
func (l *login) seal(what string) string {
	m := hmac.New(sha256.New, l.secret)
	_, _ = m.Write([]byte(what))
	return hex.EncodeToString(m.Sum(nil))
}

func (l *login) sealed(r *http.Request, what string) bool {
	return hmac.Equal([]byte(l.seal(what)), []byte(r.PostForm.Get("seal")))
}

// cookieName has the port: a browser gives the cookies of a host to all its ports.
func cookieName(r *http.Request) string {
	_, port, err := net.SplitHostPort(r.Host)
	if err != nil {
		port = "0"
	}
	return "primacy-" + port
}

// admits says whether a request may see the page.
func (l *login) admits(r *http.Request) bool {
	if _, user := agent.Peer(r); user || l.token == "" {
		return true
	}
	if got, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		return agent.SameToken(l.token, got)
	}
	return l.visitOf(r) != nil
}

// visitOf returns the login that a request's cookie is of, nil if it is of none that lasts.
func (l *login) visitOf(r *http.Request) *visit {
	c, err := r.Cookie(cookieName(r))
	if err != nil || l.token == "" {
		return nil
	}
	l.mu.Lock()
	in := l.all[sha256.Sum256([]byte(c.Value))]
	l.mu.Unlock()
	if in == nil || in.ctx.Err() != nil || in.uid != l.caller(r) {
		return nil
	}
	return in
}

// begin makes a login, and returns its cookie.
func (l *login) begin(r *http.Request) *http.Cookie {
	in, secret := &visit{till: time.Now().Add(staysIn), uid: l.caller(r)}, rand.Text()
	in.ctx, in.end = context.WithDeadline(context.Background(), in.till)
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.all, func(_ [sha256.Size]byte, old *visit) bool { return old.ctx.Err() != nil })
	if len(l.all) >= mostVisits {
		l.endOldestLocked()
	}
	l.all[sha256.Sum256([]byte(secret))] = in
	return cookie(r, secret, int(staysIn.Seconds()))
}

func (l *login) endOldestLocked() {
	oldest := slices.MinFunc(slices.Collect(maps.Keys(l.all)), func(a, b [sha256.Size]byte) int {
		return l.all[a].till.Compare(l.all[b].till)
	})
	l.all[oldest].end()
	delete(l.all, oldest)
}

func cookie(r *http.Request, value string, seconds int) *http.Cookie {
	return &http.Cookie{Name: cookieName(r), Value: value, Path: Path, MaxAge: seconds, HttpOnly: true,
		Secure: r.TLS != nil, SameSite: http.SameSiteStrictMode}
}

// askToLogIn answers who has not logged in.
func (p *Page) askToLogIn(w http.ResponseWriter, r *http.Request) {
	if wantsJSON(r) || strings.HasPrefix(r.URL.Path, Path+"events") || r.Method != http.MethodGet {
		w.Header().Set("WWW-Authenticate", `Bearer realm="primacy"`)
		p.fail(w, r, bad(http.StatusUnauthorized, "Log in first", "at %slogin, or send Authorization: Bearer TOKEN",
			Path))
		return
	}
	http.Redirect(w, r, Path+"login?"+url.Values{"to": {r.URL.RequestURI()}}.Encode(), http.StatusSeeOther)
}

// logIn answers /ui/login.
func (p *Page) logIn(w http.ResponseWriter, r *http.Request) {
	to := ownPath(r.URL.Query().Get("to"))
	wrong := false
	if r.Method == http.MethodPost {
		if err := p.form(w, r); err != nil {
			p.fail(w, r, err)
			return
		}
		to = ownPath(r.PostForm.Get("to"))
		if p.o.Token == "" || agent.SameToken(p.o.Token, strings.TrimSpace(r.PostForm.Get("token"))) {
			http.SetCookie(w, p.login.begin(r))
			http.Redirect(w, r, withoutFragment(to), http.StatusSeeOther)
			return
		}
		wrong = true
	} else if p.login.admits(r) {
		http.Redirect(w, r, withoutFragment(to), http.StatusSeeOther)
		return
	}
	f := p.frame(r, "Log in", "")
	f.bare()
	f.Data = map[string]any{"To": to, "Wrong": wrong}
	status := http.StatusOK
	if wrong {
		status = http.StatusUnauthorized
	}
	if err := render(w, status, "login", f); err != nil {
		p.fail(w, r, err)
	}
}

// logOut answers POST /ui/logout.
func (p *Page) logOut(w http.ResponseWriter, r *http.Request) error {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", "POST")
		return bad(http.StatusMethodNotAllowed, "This is done by a button", "%s is not served here", r.Method)
	}
	if in := p.login.visitOf(r); in != nil {
		in.end() // and its streams with it, in all tabs
	}
	http.SetCookie(w, cookie(r, "", -1))
	http.Redirect(w, r, Path+"login", http.StatusSeeOther)
	return nil
}

// ownPath returns a path of this page: a login must lead nowhere else.
func ownPath(to string) string {
	if strings.HasPrefix(to, Path) && !strings.ContainsAny(to, "\\\r\n\t") {
		return to
	}
	return Path
}

// withoutFragment has a browser forget what stands behind # in the address of a login: it keeps
// that otherwise, and the dashboard's address has the token there.
func withoutFragment(to string) string {
	to, _, _ = strings.Cut(to, "#")
	return to + "#"
}

// form reads the body of a POST.
func (p *Page) form(w http.ResponseWriter, r *http.Request) error {
	r.Body = http.MaxBytesReader(w, r.Body, mostIn)
	if err := r.ParseForm(); err != nil {
		return bad(http.StatusBadRequest, "The form cannot be read", "%v", fmt.Errorf("%w", err))
	}
	return nil
}
