package agent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/shown"
)

// The document as the tests read it. What follows is as much of JSON Schema 2020-12 as the document
// uses; a keyword that it does not know is an error, so that none is taken for checked.
var doc = func() (d struct {
	OpenAPI    string                                `json:"openapi"`
	Paths      map[string]map[string]json.RawMessage `json:"paths"`
	Components struct {
		Schemas   map[string]any `json:"schemas"`
		Responses map[string]any `json:"responses"`
	} `json:"components"`
}) {
	if err := json.Unmarshal(document, &d); err != nil {
		panic(err)
	}
	return d
}()

// at returns what a $ref points to, or v itself.
func at(v any) any {
	m, ok := v.(map[string]any)
	if !ok {
		return v
	}
	ref, ok := m["$ref"].(string)
	if !ok {
		return v
	}
	if name, ok := strings.CutPrefix(ref, "#/components/schemas/"); ok && doc.Components.Schemas[name] != nil {
		return at(doc.Components.Schemas[name])
	}
	if name, ok := strings.CutPrefix(ref, "#/components/responses/"); ok && doc.Components.Responses[name] != nil {
		return at(doc.Components.Responses[name])
	}
	panic("the document has no " + ref)
}

// fits says what is wrong with v by a schema, "" if nothing is.
func fits(schema, v any, where string) string {
	s := at(schema).(map[string]any)
	for _, key := range slices.Sorted(maps.Keys(s)) {
		if bad := keyword(s, key, v, where); bad != "" {
			return bad
		}
	}
	return ""
}

func keyword(s map[string]any, key string, v any, where string) string {
	want := s[key]
	object, _ := v.(map[string]any)
	number, isNumber := v.(float64)
	text, isText := v.(string)
	no := func(format string, args ...any) string { return where + ": " + fmt.Sprintf(format, args...) }
	switch key {
	case "type":
		if got := typeOf(v); got != want && !(got == "integer" && want == "number") {
			return no("is of type %s, not %s", got, want)
		}
	case "required":
		for _, name := range want.([]any) {
			if _, there := object[name.(string)]; !there {
				return no("lacks %s", name)
			}
		}
	case "properties":
		for name, sub := range want.(map[string]any) {
			if value, there := object[name]; there {
				if bad := fits(sub, value, where+"."+name); bad != "" {
					return bad
				}
			}
		}
	case "additionalProperties":
		for name := range object {
			if _, known := s["properties"].(map[string]any)[name]; !known && want == false {
				return no("has %s, which is not in the document", name)
			}
		}
	case "items":
		for i, item := range asSlice(v) {
			if bad := fits(want, item, fmt.Sprintf("%s[%d]", where, i)); bad != "" {
				return bad
			}
		}
	case "enum":
		if !slices.Contains(want.([]any), v) {
			return no("%v is none of %v", v, want)
		}
	case "oneOf":
		n := 0
		for _, sub := range want.([]any) {
			if fits(sub, v, where) == "" {
				n++
			}
		}
		if n != 1 {
			return no("fits %d of oneOf", n)
		}
	case "pattern":
		if isText && !regexp.MustCompile(want.(string)).MatchString(text) {
			return no("%q does not match %s", text, want)
		}
	case "minimum":
		if isNumber && number < want.(float64) {
			return no("%v is below %v", v, want)
		}
	case "maximum":
		if isNumber && number > want.(float64) {
			return no("%v is above %v", v, want)
		}
	case "minLength":
		if isText && float64(len(text)) < want.(float64) {
			return no("%q is shorter than %v", text, want)
		}
	case "description", "format":
	default:
		return no("the schema has %s, which the test does not know", key)
	}
	return ""
}

func asSlice(v any) []any { s, _ := v.([]any); return s }

func typeOf(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case []any:
		return "array"
	case float64:
		if v == math.Trunc(v) {
			return "integer"
		}
		return "number"
	}
	return "object"
}

// checked holds every answer of an agent to the document.
type checked struct {
	testing.TB
	http.Handler
	mu   sync.Mutex
	seen map[string]bool // "GET /v1/elections 200"
}

func (c *checked) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rec := &recorder{ResponseWriter: w}
	c.Handler.ServeHTTP(rec, r)
	if rec.status == 0 {
		rec.status = http.StatusOK
	}
	what := fmt.Sprintf("%s %s → %d", r.Method, r.URL.EscapedPath(), rec.status)
	op, path := operation(r)
	if op == nil {
		if rec.status != http.StatusNotFound && rec.status != http.StatusMethodNotAllowed &&
			rec.status != http.StatusUnauthorized &&
			rec.status != http.StatusForbidden && rec.status != http.StatusMisdirectedRequest {
			c.Errorf("%s: the document does not know the path", what)
		}
		return
	}
	answers := op["responses"].(map[string]any)
	answer, known := answers[fmt.Sprint(rec.status)]
	if !known {
		c.Errorf("%s: the document has no such status for it: %s", what, rec.body.String())
		return
	}
	c.mu.Lock()
	c.seen[fmt.Sprintf("%s %s %d", r.Method, path, rec.status)] = true
	c.mu.Unlock()
	if r.Method == http.MethodHead || r.Method == http.MethodOptions {
		return
	}
	if bad := rec.fits(at(answer).(map[string]any)); bad != "" {
		c.Errorf("%s: %s in %s", what, bad, rec.body.String())
	}
}

// operation returns the operation of a request, nil if the document has none.
func operation(r *http.Request) (map[string]any, string) {
	for path, ops := range doc.Paths {
		pattern := "^" + strings.ReplaceAll(regexp.QuoteMeta(path), `\{name\}`, "[^/]+") + "$"
		if rest := strings.HasSuffix(path, "{name}") && !strings.HasPrefix(path, "/v1/"); rest {
			pattern = strings.Replace(pattern, "[^/]+", ".+", 1)
		}
		if !regexp.MustCompile(pattern).MatchString(r.URL.EscapedPath()) {
			continue
		}
		if raw, ok := ops[strings.ToLower(r.Method)]; ok {
			var op map[string]any
			_ = json.Unmarshal(raw, &op)
			return op, path
		}
	}
	return nil, ""
}

// recorder keeps what is answered, and lets it through.
type recorder struct {
	http.ResponseWriter
	status int
	mu     sync.Mutex
	body   bytes.Buffer
}

func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	r.body.Write(p)
	r.mu.Unlock()
	return r.ResponseWriter.Write(p)
}

// fits says what is wrong with the body, and each event of a stream, by the document.
func (r *recorder) fits(answer map[string]any) string {
	content, _ := answer["content"].(map[string]any)
	if content == nil {
		if r.body.Len() > 0 {
			return "there is a body"
		}
		return ""
	}
	media, _, _ := strings.Cut(r.Header().Get("Content-Type"), ";")
	body, known := content[media].(map[string]any)
	if !known {
		return "the content type is " + media
	}
	texts := []string{r.body.String()}
	switch media {
	case "text/plain":
		return ""
	case "application/x-ndjson":
		texts = strings.Split(strings.TrimSuffix(r.body.String(), "\n"), "\n")
	case "text/event-stream":
		texts = nil
		for line := range strings.Lines(r.body.String()) {
			if data, ok := strings.CutPrefix(line, "data: "); ok {
				texts = append(texts, data)
			}
		}
	}
	for _, text := range texts {
		var v any
		if err := json.Unmarshal([]byte(text), &v); err != nil && text != "" {
			return err.Error()
		} else if err == nil {
			if bad := fits(body["schema"], v, "$"); bad != "" {
				return bad
			}
		}
	}
	return ""
}

// TestDocumentHasEveryRoute holds the document to the routes, both ways.
func TestDocumentHasEveryRoute(t *testing.T) {
	a := newAgent(t, Options{Name: "n", Elector: true}).Agent
	served := map[string]bool{}
	for _, r := range a.router.Routes() {
		served[strings.ToLower(r.Method)+" "+strings.ReplaceAll(r.Path, "{name...}", "{name}")] = true
	}
	written := map[string]bool{}
	for path, ops := range doc.Paths {
		for method := range ops {
			written[method+" "+path] = true
		}
	}
	for r := range served {
		if !written[r] {
			t.Errorf("%s is served and not in the document", r)
		}
	}
	for r := range written {
		if !served[r] {
			t.Errorf("%s is in the document and not served", r)
		}
	}
	if doc.OpenAPI != "3.1.0" || len(served) < 60 {
		t.Errorf("the document is of OpenAPI %q; %d routes are served", doc.OpenAPI, len(served))
	}
}

// TestTheValidatorBites makes sure that fits finds what is wrong.
func TestTheValidatorBites(t *testing.T) {
	line := map[string]any{"$ref": "#/components/schemas/Line"}
	for text, bad := range map[string]string{
		`{"event":"elected","name":"n","id":"i","token":"3","lease_ms":5}`: "",
		`{"event":"elected","name":"n"}`:                                   "lacks id",
		`{"event":"won","name":"n","id":"i"}`:                              "is none of",
		`{"event":"elected","name":"n","id":"i","token":3}`:                "is of type integer",
		`{"event":"elected","name":"n","id":"i","token":"03"}`:             "does not match",
		`{"event":"elected","name":"n","id":"i","more":1}`:                 "which is not in the document",
		`{"event":"waiting","name":"n","id":"i","position":0}`:             "is below",
		`{"event":"waiting","name":"n","id":"i","lease_ms":1.5}`:           "is of type number",
		`{"event":"ended","name":"n","id":"i","problem":{"status":400}}`:   "lacks type",
		`[]`: "lacks event",
	} {
		var v any
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		if got := fits(line, v, "$"); bad == "" && got != "" || !strings.Contains(got, bad) {
			t.Errorf("%s: got %q, want %q", text, got, bad)
		}
	}
}

// TestProblems holds the list in docs/serve.md to the code.
func TestProblems(t *testing.T) {
	page, err := os.ReadFile("../../../docs/serve.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| `urn:primacy:([a-z-]+)` \\| (\\d+) \\| (.*) \\|$")
	written := row.FindAllStringSubmatch(string(page), -1)
	known := map[string]bool{}
	for _, k := range Problems {
		known[fmt.Sprintf("%s %d %s", k.Slug, k.Status, k.Title)] = true
	}
	if len(known) != len(Problems) || len(written) != len(known) {
		t.Errorf("%d kinds of problems, %d different, %d on the page", len(Problems), len(known), len(written))
	}
	for _, m := range written {
		if !known[strings.Join(m[1:], " ")] {
			t.Errorf("the page has %q, the code does not", m[1:])
		}
	}
}

// The document names each reason that the library has, and the sidecar's own.
func TestReasonsInTheDocument(t *testing.T) {
	names := func(schema string) []any {
		properties := at(doc.Components.Schemas[schema]).(map[string]any)["properties"].(map[string]any)
		return at(properties["reason"]).(map[string]any)["enum"].([]any)
	}
	of, ends := names("TermRecord"), names("Line")
	if len(of) != len(primacy.Reasons()) {
		t.Errorf("a term's reasons are %v", of)
	}
	for _, r := range primacy.Reasons() {
		if !slices.Contains(of, any(string(r))) {
			t.Errorf("a term lacks the reason %s", r)
		}
		if r != primacy.Leads && r != primacy.Died && !slices.Contains(ends, any(string(r))) {
			t.Errorf("an event lacks the reason %s", r)
		}
	}
	for _, r := range []primacy.Reason{shown.Disconnected, shown.Lost, shown.NotRenewed, shown.Shutdown,
		shown.Timeout} {
		if !slices.Contains(ends, any(string(r))) {
			t.Errorf("an event lacks the reason %s", r)
		}
	}
}
