package health

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// Route is one method on one path. A path may have one {name}, which stands for one segment with
// its slashes escaped as %2F, or end in {name...}, which stands for all that follows. Nothing is
// cleaned: "a//b" and ".." are names like any other, and a redirect to what they might mean would
// lead to somebody else's election.
type Route struct {
	Method, Path string
	Handle       func(w http.ResponseWriter, r *http.Request, name string)
}

// Router finds the route of a request.
type Router struct{ routes []Route }

// NewRouter returns a router of these routes; of two that fit, the first counts.
func NewRouter(routes ...Route) *Router { return &Router{routes} }

// Routes returns all routes, in order.
func (m *Router) Routes() []Route { return slices.Clone(m.routes) }

// ServeHTTP answers what is not found, and a method that is not served, with a problem.
func (m *Router) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.EscapedPath()
	var allow []string
	for _, t := range m.routes {
		name, ok := match(t.Path, path)
		if !ok {
			continue
		}
		if t.Method == r.Method {
			t.Handle(w, r, name)
			return
		}
		if !slices.Contains(allow, t.Method) {
			allow = append(allow, t.Method)
		}
	}
	if allow == nil {
		NotFound.Write(w, "there is nothing at this path; GET /openapi.json lists what there is, "+
			"and a slash in a name is written %%2F")
		return
	}
	w.Header().Set("Allow", strings.Join(allow, ", "))
	BadMethod.Write(w, "%s is not served here: use %s", r.Method, strings.Join(allow, " or "))
}

// match returns the name in path, which is escaped, if it fits the pattern.
func match(pattern, path string) (string, bool) {
	before, after, named := strings.Cut(pattern, "{name")
	if !named {
		return "", pattern == path
	}
	rest, ok := strings.CutPrefix(path, before)
	if !ok {
		return "", false
	}
	if after == "...}" {
		return unescape(rest)
	}
	seg, ok := strings.CutSuffix(rest, strings.TrimPrefix(after, "}"))
	if !ok || strings.Contains(seg, "/") {
		return "", false
	}
	return unescape(seg)
}

func unescape(s string) (string, bool) {
	name, err := url.PathUnescape(s)
	return name, err == nil && name != ""
}
