package page

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/doctor"
	"github.com/primacy-go/primacy/cmd/internal/top"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/pause"
)

// Path is what the paths of all views begin with.
const Path = "/ui/"

// Options of a Page.
type Options struct {
	Store   driver.Store
	Session *primacy.Session // reads, and asks leaders; it needs no lease
	Source  top.Source       // of the same store
	URL     string           // of the store, for people: without a password
	// Value says to people what the candidate of an election announces.
	Value func(name string, e primacy.Entry) string
	Drift float64 // the drift bound that sessions on the store keep
	// Sick returns who has said that he is unhealthy, by the name that he stands for; nil: nobody
	// tells.
	Sick func(context.Context) (map[string][]Sick, error)
	// Effects says what the end of a pause means for what it covers; nil: nobody tells.
	Effects func(context.Context, pause.Pause) ([]Effect, error)
	// Pausable says why a scope cannot be paused, nil if it can be; nil: all can.
	Pausable func(scope string) error
	// Examine takes some seconds and tells what it finds; nil: the page offers no examination.
	Examine func(context.Context, func(doctor.Check)) *doctor.Report
	// Token is what a browser logs in with. Empty: whoever reaches the page may see it.
	Token string
	// Actions lets who sees the page ask leaders to hand over, pause and resume.
	Actions bool
	// Asker names who makes a request, as far as its connection says; empty: it does not. Nil: none
	// does.
	Asker func(*http.Request) string
	// Person is who asks, if the connection does not say: he may say otherwise.
	Person string
	// Streams is how many tabs are kept up to date at once, at each listener. Default 100.
	Streams int
	// Timeout is for a store that does not answer. Default 5 s.
	Timeout time.Duration
	// Wait is how long a leader that was asked may take. Default 30 s.
	Wait time.Duration
	// Every is from one reading of the store to the next while somebody looks. Default 500 ms.
	Every  time.Duration
	Logger *slog.Logger
}

// Page answers requests for views. Who may reach it is for the caller to decide, but for the token.
type Page struct {
	o         Options
	feed      *feed
	records   *records
	cron      *cronReader
	requests  *requests
	exam      *examiner
	login     *login
	keptViews *keptViews
	streams   streams

	standing *standing
	ctx      context.Context
	cancel   context.CancelFunc
	stopped  chan struct{} // closed when streams must end
	stop     func()
}

// New returns a Page on a store. It does no I/O.
func New(o Options) *Page {
	o.Streams = cmp.Or(o.Streams, 100)
	o.Timeout = cmp.Or(o.Timeout, 5*time.Second)
	o.Wait = cmp.Or(o.Wait, 30*time.Second)
	o.Every = cmp.Or(o.Every, 500*time.Millisecond)
	if o.Value == nil {
		o.Value = func(_ string, e primacy.Entry) string { return string(e.Value) }
	}
	if o.Asker == nil {
		o.Asker = func(*http.Request) string { return "" }
	}
	kept := &standing{o: o}
	o.Source.Paused = kept.read
	p := &Page{o: o, standing: kept, stopped: make(chan struct{})}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.stop = sync.OnceFunc(func() { close(p.stopped) })
	p.feed = newFeed(p.ctx, o)
	p.records = &records{session: o.Session, timeout: o.Timeout, all: map[string]*record{}}
	p.cron = &cronReader{store: o.Store, timeout: o.Timeout}
	p.requests = &requests{}
	p.exam = &examiner{run: o.Examine}
	p.login = newLogin(o.Token, rand.Text())
	p.keptViews = &keptViews{}
	return p
}

// Stop ends all streams: a server that shuts down would wait for them.
func (p *Page) Stop() { p.stop() }

// Close ends what the page does by itself, and waits for that. A leader that has been asked hands
// over all the same.
func (p *Page) Close() {
	p.stop()
	p.cancel()
	p.feed.wait()
	p.requests.wait()
	p.exam.wait()
}

// view is one page of the site.
type view struct {
	path string // below Path
	nav  string // its word in the navigation; empty: it is reached from another view
	page string // its template
	show func(ctx context.Context, p *Page, q url.Values) (content, error)
	// again returns the content that was shown before as it is now, or false if it may have
	// changed. It is for a view that sees with little work that it is the same; nil: this cannot.
	again func(ctx context.Context, p *Page, before content) (content, bool)
	once  bool // it is a form: it does not change while it is read
}

// views are all there are, in the order of the navigation.
var views = []view{
	{path: "", nav: "Overview", page: "overview", show: overview, again: listedAgain},
	{path: "election", page: "election", show: election},
	{path: "shards", nav: "Shards", page: "shards", show: shardGroups},
	{path: "group", page: "group", show: shardGroup},
	{path: "cron", nav: "Cron", page: "cron", show: cronJobs},
	{path: "job", page: "job", show: cronJob},
	{path: "members", nav: "Members", page: "members", show: members},
	{path: "member", page: "member", show: memberOf},
	{path: "store", nav: "Store", page: "store", show: storeOf},
}

func viewAt(path string) (view, bool) {
	for _, v := range views {
		if v.path == path {
			return v, true
		}
	}
	return view{}, false
}

// problem is an answer that is an error: a line of what is wrong, and what to do.
type problem struct {
	Status int
	Title  string
	Detail string
}

func (e *problem) Error() string { return e.Title + ": " + e.Detail }

func bad(status int, title, format string, args ...any) error {
	return &problem{status, title, fmt.Sprintf(format, args...)}
}

// ServeHTTP answers.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	harden(w.Header())
	path, ok := strings.CutPrefix(r.URL.Path, Path)
	switch {
	case !ok:
		http.Redirect(w, r, Path, http.StatusFound)
		return
	case strings.HasPrefix(path, assetPath):
		serveAsset(w, r, strings.TrimPrefix(path, assetPath))
		return
	case path == "login":
		p.logIn(w, r)
		return
	case !p.login.admits(r):
		p.askToLogIn(w, r)
		return
	}
	err := p.answer(w, r, path)
	if m := (*moved)(nil); errors.As(err, &m) {
		http.Redirect(w, r, m.url, http.StatusSeeOther)
	} else if err != nil {
		p.fail(w, r, err)
	}
}

func (p *Page) answer(w http.ResponseWriter, r *http.Request, path string) error {
	stream, isStream := strings.CutPrefix(path, "events")
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	switch {
	case path == "logout":
		return p.logOut(w, r)
	case path == "act":
		return p.act(w, r)
	case path == "store/examine":
		return examine(p, w, r)
	case !reads:
		w.Header().Set("Allow", "GET, HEAD")
		return bad(http.StatusMethodNotAllowed, "This view is only read", "%s is not served here", r.Method)
	case isStream && (stream == "" || stream[0] == '/'):
		if r.Method == http.MethodHead { // it would never be answered
			w.Header().Set("Allow", "GET")
			return bad(http.StatusMethodNotAllowed, "A stream is only read", "HEAD is not served here")
		}
		v, ok := viewAt(strings.TrimPrefix(stream, "/"))
		if !ok {
			return notFound(path)
		}
		return p.stream(w, r, v)
	}
	v, ok := viewAt(path)
	if !ok {
		return notFound(path)
	}
	c, err := p.content(r.Context(), v, r.URL.Query())
	if err != nil {
		return err
	}
	if wantsJSON(r) {
		return writeJSON(w, http.StatusOK, c.json)
	}
	return p.write(w, r, http.StatusOK, v, c)
}

func notFound(path string) error {
	return bad(http.StatusNotFound, "There is no such view", "nothing is at %s%s", Path, path)
}

// harden sets what protects each answer. Nothing may be kept by a cache, framed by another page, or
// run but our own script; there is no style or script in a page itself.
func harden(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "+
		"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
}

// frame is what stands around each view.
type frame struct {
	Title    string
	Nav      []navItem
	Store    string
	URL      string
	Stream   string // empty: the view does not change
	Version  string
	Now      int64 // in milliseconds, for the script: a reader's clock may be another
	Assets   assets
	Actions  bool
	LoggedIn bool
	JSON     string // where the same is as JSON; empty: nowhere
	Data     any
}

type navItem struct {
	Word, URL string
	Here      bool
}

func (p *Page) frame(r *http.Request, title, here string) frame {
	f := frame{Title: title, Store: p.o.Source.Store, URL: p.o.URL, Now: time.Now().UnixMilli(), Assets: hashed,
		Actions: p.o.Actions, LoggedIn: p.o.Token != "" && p.login.admits(r)}
	for _, v := range views {
		if v.nav != "" {
			f.Nav = append(f.Nav, navItem{v.nav, Path + v.path, v.nav == here})
		}
	}
	return f
}

// bare takes out what only those learn who have logged in.
func (f *frame) bare() { f.Nav, f.Store, f.URL, f.Actions = nil, "", "", false }

func (p *Page) write(w http.ResponseWriter, r *http.Request, status int, v view, c content) error {
	f := p.frame(r, c.title, v.nav)
	f.Data = c.data
	if !v.once {
		f.Version = c.version
		f.Stream = Path + "events" + under(v.path) + query(r.URL.Query())
		f.JSON = r.URL.RequestURI()
	}
	return render(w, status, v.page, f)
}

func under(path string) string {
	if path == "" {
		return ""
	}
	return "/" + path
}

func query(q url.Values) string {
	if len(q) == 0 {
		return ""
	}
	return "?" + q.Encode()
}

// render writes a whole page, or nothing of it.
func render(w http.ResponseWriter, status int, page string, f frame) error {
	var b bytes.Buffer
	if err := pages()[page].ExecuteTemplate(&b, "layout", f); err != nil {
		return fmt.Errorf("the view %s: %w", page, err)
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes())
	return nil
}

// fail answers with what is wrong.
func (p *Page) fail(w http.ResponseWriter, r *http.Request, err error) {
	e := &problem{http.StatusInternalServerError, "Our own failure", err.Error()}
	switch {
	case errors.As(err, &e):
	case errors.Is(err, primacy.ErrInvalid):
		e = &problem{http.StatusBadRequest, "This cannot work", err.Error()}
	case errors.Is(err, primacy.ErrUnreachable), errors.Is(err, context.DeadlineExceeded):
		e = &problem{http.StatusServiceUnavailable, "The store does not answer", err.Error()}
	case p.o.Logger != nil:
		p.o.Logger.Error("the page", "path", r.URL.Path, "err", err)
	}
	if wantsJSON(r) {
		_ = writeJSON(w, e.Status, map[string]any{"title": e.Title, "status": e.Status, "detail": e.Detail})
		return
	}
	f := p.frame(r, e.Title, "")
	if !p.login.admits(r) {
		f.bare()
	}
	f.Data = e
	if err := render(w, e.Status, "problem", f); err != nil {
		http.Error(w, e.Error(), e.Status)
	}
}

// wantsJSON says whether a program asks. A browser asks for HTML first.
func wantsJSON(r *http.Request) bool {
	accept := r.Header.Get("Accept")
	return strings.Contains(accept, "application/json") && !strings.Contains(accept, "text/html")
}

func writeJSON(w http.ResponseWriter, status int, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n'))
	return nil
}
