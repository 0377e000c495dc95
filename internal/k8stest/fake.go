package k8stest

import (
	"cmp"
	"crypto/tls"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// fake is as much of an API server as a store on Leases can tell from the real one: versions, uids,
// preconditions, watches, a history of limited length, and who may do what. What is not about
// Leases is not there. TestTheFakeAnswersAsTheServerDoes holds the two together.
type fake struct {
	tb   testing.TB
	cert tls.Certificate

	mu      sync.Mutex
	changed *sync.Cond
	server  *httptest.Server
	leases  map[string]map[string]any // by name; each is replaced, never changed
	cached  map[string]map[string]any // what a read with a resourceVersion is answered from: one change behind
	version int64                     // of the last change
	history []change                  // the last changes
	verbs   []string                  // what the user may do
	down    bool
	uids    int
	waiting int // watches that wait for a change
}

// change is one change of a Lease.
type change struct {
	version int64
	kind    string // as a watch calls it
	name    string
	lease   map[string]any
}

// kept is how many changes the fake remembers: a watch from an earlier one is told 410.
const kept = 200

// largest is how many bytes the annotations of one object may have.
const largest = 256 << 10

// StartFake starts the fake.
func StartFake(tb testing.TB) *Server {
	tb.Helper()
	ca := newAuthority(tb)
	cert, key := ca.issue(tb, pkix.Name{CommonName: "fake"})
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		tb.Fatal(err)
	}
	f := &fake{tb: tb, cert: pair, leases: map[string]map[string]any{}, cached: map[string]map[string]any{},
		version: 100, verbs: Verbs}
	f.changed = sync.NewCond(&f.mu)
	addr := f.start("127.0.0.1:0")
	tb.Cleanup(f.kill)
	s := &Server{URL: "https://" + addr, Addr: addr, CA: ca.pem, tb: tb, fake: f}
	s.Cert, s.Key = ca.issue(tb, pkix.Name{CommonName: userName})
	s.client = &http.Client{Transport: &http.Transport{TLSClientConfig: s.TLS()}}
	tb.Cleanup(s.client.CloseIdleConnections)
	return s
}

// start serves at addr, and returns where that is.
func (f *fake) start(addr string) string {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		f.tb.Fatalf("k8stest: %v", err)
	}
	srv := httptest.NewUnstartedServer(f)
	srv.Listener.Close()
	srv.Listener = ln
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{f.cert}, ClientAuth: tls.RequestClientCert}
	srv.EnableHTTP2 = true
	srv.Config.ErrorLog = log.New(io.Discard, "", 0) // handshakes that a test breaks off
	srv.StartTLS()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.server, f.down = srv, false
	return ln.Addr().String()
}

// kill ends the server; what it holds stays.
func (f *fake) kill() {
	f.mu.Lock()
	srv := f.server
	f.down = true
	f.changed.Broadcast()
	f.mu.Unlock()
	srv.CloseClientConnections()
	srv.Close()
}

func (f *fake) allow(verbs []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.verbs = verbs
}

// answer is a reply: an object, or a Status where reason is not empty.
type answer struct {
	code    int
	object  any
	reason  string
	message string
	details map[string]any
}

func refuse(code int, reason, message string, details map[string]any) answer {
	return answer{code: code, reason: reason, message: message, details: details}
}

func notFound(name string) answer {
	return refuse(404, "NotFound", fmt.Sprintf("leases.coordination.k8s.io %q not found", name), of(name))
}

func of(name string) map[string]any {
	return map[string]any{"name": name, "group": "coordination.k8s.io", "kind": "leases"}
}

func (a answer) write(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(a.code)
	if a.reason != "" {
		a.object = status(a.code, a.reason, a.message, a.details)
	}
	_ = json.NewEncoder(w).Encode(a.object)
}

func status(code int, reason, message string, details map[string]any) map[string]any {
	return map[string]any{"kind": "Status", "apiVersion": "v1", "metadata": map[string]any{}, "status": "Failure",
		"message": message, "reason": reason, "details": details, "code": code}
}

// ServeHTTP implements [http.Handler].
func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/version" {
		answer{code: 200, object: map[string]any{"gitVersion": "v" + Version + "-fake"}}.write(w)
		return
	}
	who := who(r)
	if who == "" {
		refuse(401, "Unauthorized", "Unauthorized", nil).write(w)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if strings.HasSuffix(r.URL.Path, "/selfsubjectaccessreviews") {
		f.review(who, body).write(w)
		return
	}
	if found, ok := discovery[r.URL.Path]; ok {
		answer{code: 200, object: json.RawMessage(found)}.write(w)
		return
	}
	path, ok := strings.CutPrefix(r.URL.Path, "/apis/coordination.k8s.io/v1/namespaces/")
	namespace, rest, _ := strings.Cut(path, "/")
	kind, name, _ := strings.Cut(rest, "/")
	if !ok || kind != "leases" {
		refuse(404, "NotFound", "the server could not find the requested resource", map[string]any{}).write(w)
		return
	}
	verb := verbOf(r, name)
	if !f.may(who, verb, namespace) {
		refuse(403, "Forbidden",
			fmt.Sprintf(`leases.coordination.k8s.io %q is forbidden: User %q cannot %s resource "leases" in API group `+
				`"coordination.k8s.io" in the namespace %q`, name, who, verb, namespace), of(name)).write(w)
		return
	}
	switch {
	case verb == "watch" && r.URL.Query().Get("sendInitialEvents") != "": // as a server that knows no such list
		refuse(422, "Invalid", "ListOptions.meta.k8s.io is invalid: sendInitialEvents: Forbidden", nil).write(w)
		return
	case verb == "watch":
		f.watch(w, r)
		return
	}
	f.mu.Lock()
	a := f.serveLocked(r, verb, namespace, name, body)
	f.mu.Unlock()
	a.write(w)
}

// discovery is what a client asks who wants to know which resources there are.
var discovery = map[string]string{
	"/api":    `{"kind":"APIVersions","versions":["v1"]}`,
	"/api/v1": `{"kind":"APIResourceList","groupVersion":"v1","resources":[]}`,
	"/apis": `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"coordination.k8s.io",` +
		`"versions":[{"groupVersion":"coordination.k8s.io/v1","version":"v1"}],` +
		`"preferredVersion":{"groupVersion":"coordination.k8s.io/v1","version":"v1"}}]}`,
	"/apis/coordination.k8s.io/v1": `{"kind":"APIResourceList","apiVersion":"v1",` +
		`"groupVersion":"coordination.k8s.io/v1","resources":[{"name":"leases","singularName":"lease",` +
		`"namespaced":true,"kind":"Lease","verbs":["create","delete","get","list","update","watch"]}]}`,
}

func who(r *http.Request) string {
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		return r.TLS.PeerCertificates[0].Subject.CommonName
	}
	switch r.Header.Get("Authorization") {
	case "Bearer " + AdminToken:
		return "admin"
	case "Bearer " + UserToken:
		return userName
	case "Bearer " + NobodyToken:
		return "nobody"
	}
	return ""
}

func verbOf(r *http.Request, name string) string {
	switch {
	case r.Method == "GET" && r.URL.Query().Get("watch") != "":
		return "watch"
	case r.Method == "GET" && name == "":
		return "list"
	}
	return map[string]string{"GET": "get", "POST": "create", "PUT": "update", "DELETE": "delete"}[r.Method]
}

func (f *fake) may(who, verb, namespace string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return who == "admin" || who == userName && namespace == Namespace && slices.Contains(f.verbs, verb)
}

func (f *fake) review(who string, body []byte) answer {
	var ask struct {
		Spec struct {
			ResourceAttributes struct{ Namespace, Verb, Resource string }
		}
	}
	if err := json.Unmarshal(body, &ask); err != nil {
		return refuse(400, "BadRequest", err.Error(), nil)
	}
	at := ask.Spec.ResourceAttributes
	allowed := at.Resource == "leases" && f.may(who, at.Verb, at.Namespace)
	return answer{code: 201, object: map[string]any{"kind": "SelfSubjectAccessReview",
		"status": map[string]any{"allowed": allowed}}}
}

// lease is what of a Lease the fake looks at.
type lease struct {
	Metadata struct {
		Name, UID, ResourceVersion string
		Labels, Annotations        map[string]string
	}
	Spec struct{ LeaseDurationSeconds *int }
}

func (f *fake) serveLocked(r *http.Request, verb, namespace, name string, body []byte) answer {
	switch verb {
	case "get":
		l := f.leases[name]
		if r.URL.Query().Has("resourceVersion") {
			l = f.cached[name]
		}
		if l != nil && namespace == Namespace {
			return answer{code: 200, object: l}
		}
		return notFound(name)
	case "list":
		return f.listLocked(r)
	case "delete":
		return f.deleteLocked(name, body)
	case "create", "update":
		return f.writeLocked(r, verb, namespace, name, body)
	}
	return refuse(405, "MethodNotAllowed", "not allowed", nil)
}

// writeLocked makes or replaces a Lease. As the real server does, it makes one that is not there by
// an update too, unless the update names a uid.
func (f *fake) writeLocked(r *http.Request, verb, namespace, name string, body []byte) answer {
	var object map[string]any
	var l lease
	if json.Unmarshal(body, &object) != nil || json.Unmarshal(body, &l) != nil {
		return refuse(400, "BadRequest", "the object cannot be decoded", nil)
	}
	if verb == "update" && l.Metadata.Name != name {
		return refuse(400, "BadRequest", "the name of the object does not match the name on the URL", nil)
	}
	name = l.Metadata.Name
	if namespace != Namespace && verb == "create" {
		return refuse(404, "NotFound", fmt.Sprintf("namespaces %q not found", namespace),
			map[string]any{"name": namespace, "kind": "namespaces"})
	}
	if a := invalid(name, l); a.code != 0 {
		return a
	}
	old := f.leases[name]
	switch conflict := "Operation cannot be fulfilled on leases.coordination.k8s.io " + strconv.Quote(name) + ": "; {
	case verb == "create" && l.Metadata.ResourceVersion != "":
		return refuse(500, "", "resourceVersion should not be set on objects to be created", nil)
	case verb == "create" && old != nil:
		return refuse(409, "AlreadyExists", fmt.Sprintf("leases.coordination.k8s.io %q already exists", name), of(name))
	case verb == "update" && l.Metadata.UID != "" && l.Metadata.UID != meta(old)["uid"]:
		return refuse(409, "Conflict", conflict+"Precondition failed: UID in precondition: "+l.Metadata.UID, of(name))
	case verb == "update" && old != nil && l.Metadata.ResourceVersion != "" &&
		l.Metadata.ResourceVersion != meta(old)["resourceVersion"]:
		return refuse(409, "Conflict", conflict+"the object has been modified; please apply your changes to the "+
			"latest version and try again", of(name))
	}
	m := maps.Clone(meta(object))
	kind, code := "MODIFIED", 200
	m["uid"], m["namespace"] = meta(old)["uid"], namespace
	if old == nil {
		f.uids++
		kind, code, m["uid"] = "ADDED", 201, fmt.Sprintf("00000000-0000-4000-8000-%012d", f.uids)
	}
	m["resourceVersion"] = strconv.FormatInt(f.version+1, 10)
	object["metadata"], object["kind"], object["apiVersion"] = m, "Lease", "coordination.k8s.io/v1"
	if r.URL.Query().Get("dryRun") == "" {
		f.cached[name] = f.leases[name]
		f.leases[name] = object
		f.noteLocked(kind, name, object)
	}
	return answer{code: code, object: object}
}

// invalid says what the real server's validation would.
func invalid(name string, l lease) answer {
	size := 0
	for k, v := range l.Metadata.Annotations {
		size += len(k) + len(v)
	}
	why := ""
	switch d := l.Spec.LeaseDurationSeconds; {
	case size > largest:
		why = fmt.Sprintf("metadata.annotations: Too long: may not be more than %d bytes", largest)
	case name == "" || len(name) > 253 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-.") != "" ||
		strings.Contains(name, ".-"):
		why = "metadata.name: Invalid value: a lowercase RFC 1123 subdomain must consist of lower case " +
			"alphanumeric characters, '-' or '.'"
	case d != nil && *d <= 0:
		why = "spec.leaseDurationSeconds: Invalid value: must be greater than 0"
	default:
		return answer{}
	}
	return refuse(422, "Invalid", fmt.Sprintf("Lease.coordination.k8s.io %q is invalid: %s", name, why), of(name))
}

func meta(object map[string]any) map[string]any {
	m, _ := object["metadata"].(map[string]any)
	return m
}

func (f *fake) noteLocked(kind, name string, l map[string]any) {
	f.version++
	f.history = append(f.history, change{f.version, kind, name, l})
	f.history = f.history[max(0, len(f.history)-kept):]
	f.changed.Broadcast()
}

func (f *fake) deleteLocked(name string, body []byte) answer {
	var o struct {
		Preconditions struct{ UID, ResourceVersion *string }
	}
	if len(body) > 0 && json.Unmarshal(body, &o) != nil {
		return refuse(400, "BadRequest", "the options cannot be decoded", nil)
	}
	l := f.leases[name]
	if l == nil {
		return notFound(name)
	}
	p := o.Preconditions
	if p.UID != nil && *p.UID != meta(l)["uid"] || p.ResourceVersion != nil &&
		*p.ResourceVersion != meta(l)["resourceVersion"] {
		return refuse(409, "Conflict", "Precondition failed", of(name))
	}
	f.cached[name] = f.leases[name]
	delete(f.leases, name)
	gone := maps.Clone(l)
	m := maps.Clone(meta(l))
	m["resourceVersion"] = strconv.FormatInt(f.version+1, 10)
	gone["metadata"] = m
	f.noteLocked("DELETED", name, gone)
	return answer{code: 200, object: map[string]any{"kind": "Status", "status": "Success"}}
}

// matches reports whether a Lease is one that the query selects.
func matches(r *http.Request, name string, l map[string]any) bool {
	for _, want := range strings.Split(r.URL.Query().Get("fieldSelector"), ",") {
		if k, v, ok := strings.Cut(want, "="); ok && (k != "metadata.name" || v != name) {
			return false
		}
	}
	labels, _ := meta(l)["labels"].(map[string]any)
	for _, want := range strings.Split(r.URL.Query().Get("labelSelector"), ",") {
		if k, v, ok := strings.Cut(want, "="); ok && labels[k] != v {
			return false
		}
	}
	return true
}

func (f *fake) listLocked(r *http.Request) answer {
	q := r.URL.Query()
	limit, _ := strconv.Atoi(q.Get("limit"))
	items, more := []any{}, ""
	for _, name := range slices.Sorted(maps.Keys(f.leases)) {
		if !matches(r, name, f.leases[name]) || name <= q.Get("continue") {
			continue
		}
		if limit > 0 && len(items) == limit {
			more = cmp.Or(more, meta(items[limit-1].(map[string]any))["name"].(string))
			break
		}
		items = append(items, f.leases[name])
	}
	return answer{code: 200, object: map[string]any{"kind": "LeaseList", "apiVersion": "coordination.k8s.io/v1",
		"metadata": map[string]any{"resourceVersion": strconv.FormatInt(f.version, 10), "continue": more},
		"items":    items}}
}

// watch streams changes, from a version on or from what there is.
func (f *fake) watch(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	limit := time.Hour
	if n, err := strconv.Atoi(q.Get("timeoutSeconds")); err == nil {
		limit = time.Duration(n) * time.Second
	}
	ended := time.Now().Add(limit)
	over := time.AfterFunc(limit, f.wake)
	defer over.Stop()
	stop := contextDone(r, f.wake)
	defer stop()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(200)
	flush := http.NewResponseController(w)
	_ = flush.Flush()
	f.mu.Lock()
	defer f.mu.Unlock()
	after, err := strconv.ParseInt(q.Get("resourceVersion"), 10, 64)
	var events []map[string]any
	if err != nil || after == 0 {
		after = f.version
		for name, l := range f.leases {
			if matches(r, name, l) {
				events = append(events, map[string]any{"type": "ADDED", "object": l})
			}
		}
	}
	for {
		if len(f.history) > 0 && after < f.history[0].version-1 {
			events = append(events, map[string]any{"type": "ERROR", "object": status(410, "Expired",
				fmt.Sprintf("too old resource version: %d (%d)", after, f.history[0].version), nil)})
			ended = time.Time{}
		}
		for _, c := range f.history {
			if c.version > after {
				after = c.version
				if matches(r, c.name, c.lease) {
					events = append(events, map[string]any{"type": c.kind, "object": c.lease})
				}
			}
		}
		if len(events) > 0 {
			f.mu.Unlock()
			for _, e := range events {
				_ = json.NewEncoder(w).Encode(e)
			}
			_ = flush.Flush()
			f.mu.Lock()
			events = nil
			continue
		}
		if f.down || r.Context().Err() != nil || !time.Now().Before(ended) {
			return
		}
		f.waiting++
		f.changed.Wait()
		f.waiting--
	}
}

// wake has all watches look again.
func (f *fake) wake() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changed.Broadcast()
}

// contextDone calls f when the client of r has gone.
func contextDone(r *http.Request, f func()) (stop func()) {
	done := make(chan struct{})
	go func() {
		select {
		case <-r.Context().Done():
			f()
		case <-done:
		}
	}()
	return func() { close(done) }
}

// Watched says whether a watch waits on the fake right now.
func (s *Server) Watched() bool {
	s.fake.mu.Lock()
	defer s.fake.mu.Unlock()
	return s.fake.waiting > 0
}
