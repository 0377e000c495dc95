package page

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/cron"
	"github.com/primacy-go/primacy/cmd/internal/doctor"
	"github.com/primacy-go/primacy/cmd/internal/top"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
)

// site is a page on a store of its own, in fake time.
type site struct {
	testing.TB
	*Page
	store *memstore.Store
	lists atomic.Int64 // of the store, that were asked for
	down  atomic.Bool  // it does not answer
	slow  func(context.Context) error
}

// within runs a test in fake time.
func within(t *testing.T, o Options, test func(s *site)) {
	synctest.Test(t, func(t *testing.T) {
		s := &site{TB: t, store: memstore.New(memstore.Options{})}
		own := s.session("page")
		o.Store, o.Session, o.URL = s.store, own, "mem://here"
		o.Source = top.SourceOf(own, s.store, "", time.UTC)
		list := o.Source.List
		o.Source.List = func(ctx context.Context) ([]primacy.State, error) {
			s.lists.Add(1)
			if s.slow != nil {
				if err := s.slow(ctx); err != nil {
					return nil, err
				}
			}
			if s.down.Load() {
				return nil, fmt.Errorf("%w: nobody is there", primacy.ErrUnreachable)
			}
			return list(ctx)
		}
		s.Page = New(o)
		defer s.Close()
		test(s)
	})
}

func (s *site) session(id string) *primacy.Session {
	s.Helper()
	own, err := primacy.NewSession(s.store, &primacy.Options{ID: id, Overrun: primacy.OverrunWait})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = own.Close(s.Context()) })
	return own
}

// stands has a candidate stand for a name until the test ends, and do what it is asked to.
func (s *site) stands(id, name, value string) *primacy.Session {
	s.Helper()
	own := s.session(id)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = own.Candidate(name, &primacy.CampaignOptions{Value: []byte(value)}).Run(ctx, func(ctx context.Context,
			_ *primacy.Term) error {
			<-ctx.Done()
			return nil
		})
	}()
	s.Cleanup(func() { cancel(); <-ended })
	time.Sleep(time.Second) // it stands, and its term is recorded
	return own
}

// reply is an answer of the page.
type reply struct {
	*httptest.ResponseRecorder
	text string
}

func (s *site) ask(method, path string, form url.Values, headers ...string) reply {
	s.Helper()
	var r *http.Request
	if form != nil {
		r = httptest.NewRequest(method, path, strings.NewReader(form.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	} else {
		r = httptest.NewRequest(method, path, nil)
	}
	r.Host = "localhost:8080"
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return reply{w, strings.ReplaceAll(w.Body.String(), "<wbr>", "")} // a name may be broken after a slash
}

func (s *site) get(path string, headers ...string) reply {
	s.Helper()
	return s.ask("GET", path, nil, headers...)
}

func (s *site) wants(got reply, status int, texts ...string) reply {
	s.Helper()
	if got.Code != status {
		s.Errorf("answered %d, want %d:\n%.2000s", got.Code, status, got.text)
	}
	for _, want := range texts {
		if !strings.Contains(got.text, want) {
			s.Errorf("it lacks %q:\n%s", want, mainOf(got.text))
		}
	}
	return got
}

func mainOf(html string) string {
	if _, after, ok := strings.Cut(html, "<main"); ok {
		return after
	}
	return html
}

// paths are of all views that are there where web-1 leads billing, and there is a job.
var paths = []string{"/ui/", "/ui/?prefix=b", "/ui/election?name=billing", "/ui/election?name=nobody", "/ui/members",
	"/ui/member?id=web-1", "/ui/cron", "/ui/job?name=nightly", "/ui/store", "/ui/nothing", "/ui/election", "/ui/login",
	"/ui/act?verb=resign&name=billing&token=1", "/ui/act?verb=drain&member=web-1"}

func (s *site) job(name string) {
	s.Helper()
	at := time.Now().UTC().Truncate(time.Second)
	code := 1
	for i, r := range []cron.Record{
		{Key: cron.Key{At: at.Add(-2 * time.Minute), Attempt: 1, Kind: "a"}, Verdict: cron.Began, Run: "a",
			Spec: "* * * * *"},
		{Key: cron.Key{At: at.Add(-2 * time.Minute), Attempt: 1, Kind: "z"}, Verdict: cron.OK, Run: "a", Took: "1.5s"},
		{Key: cron.Key{At: at.Add(-time.Minute), Attempt: 1, Kind: "a"}, Verdict: cron.Began, Run: "b",
			Spec: "* * * * *"},
		{Key: cron.Key{At: at.Add(-time.Minute), Attempt: 1, Kind: "z"}, Verdict: cron.Failed, Run: "b", Took: "2s",
			Code: &code, Text: "the disk is full"},
	} {
		r.By, r.When = "web-1", at
		text, err := json.Marshal(r)
		if err != nil {
			s.Fatal(err)
		}
		_, _, err = s.store.Append(s.Context(), cron.Prefix+name, driver.Record{Key: r.Key.String(), Value: text}, 1000)
		if err != nil {
			s.Fatalf("record %d: %v", i, err)
		}
	}
}

func TestEachViewShowsWhatThereIs(t *testing.T) {
	within(t, Options{Person: "ops@here"}, func(s *site) {
		s.stands("web-1", "billing", "10.0.0.1")
		s.stands("web-2", "billing", "10.0.0.2")
		s.job("nightly")
		s.wants(s.get("/ui/"), 200, "billing", "web-1", "nothing in trouble", `href="/ui/election?name=billing"`)
		s.wants(s.get("/ui/?prefix=zzz"), 200, "No name begins with it")
		s.wants(s.get("/ui/election?name=billing"), 200, "web-1", "10.0.0.1", "waits, 1", "leads now", "<svg",
			"primacy resign billing --token ", "primacy transfer billing --to web-2 --token ")
		s.wants(s.get("/ui/election?name=nobody"), 200, "nobody")
		s.wants(s.get("/ui/members"), 200, "web-1", "web-2")
		s.wants(s.get("/ui/member?id=web-1"), 200, "billing", "primacy drain web-1")
		s.wants(s.get("/ui/cron"), 200, "nightly", "failed", "exit 1", "mostly 1.5s")
		s.wants(s.get("/ui/job?name=nightly"), 200, "the disk is full", "primacy cron run nightly")
		s.wants(s.get("/ui/job?name=daily"), 404, "no such job")
		s.wants(s.get("/ui/store"), 200, "mem://here", "one leader", "primacy doctor")
		s.wants(s.get("/ui/nothing"), 404)
		s.wants(s.get("/ui/election?name="), 400)
		s.wants(s.get("/ui/election?name=b&range=2h"), 400, "use 1h, 24h or 7d")
		s.wants(s.get("/ui/?page=x"), 400)
		s.wants(s.ask("POST", "/ui/", url.Values{}), 405)
	})
}

// An address with 03:12 in it would mean another instant tomorrow: it leads to one that does not.
func TestAnInstantStaysInTheAddress(t *testing.T) {
	within(t, Options{}, func(s *site) {
		s.stands("web-1", "billing", "")
		time.Sleep(24 * time.Hour)
		got := s.wants(s.get("/ui/election?name=billing&at=03:12&tz=Europe%2FVienna&range=24h"), 303)
		at := got.Header().Get("Location")
		if at != "/ui/election?at=2000-01-01T02%3A12%3A00Z&name=billing&range=24h" {
			t.Errorf("it leads to %s", at)
		}
		s.wants(s.get(at), 200, "web-1 led", "goes on", "2000-01-01 02:12:00", `value="2000-01-01 02:12:00"`)
		var j struct{ Led, Token, Answer string }
		if err := json.Unmarshal([]byte(s.get(at, "Accept", "application/json").text), &j); err != nil ||
			j.Led != "led" ||
			j.Token == "" || !strings.Contains(j.Answer, "web-1 led") {
			t.Errorf("in JSON: %+v (%v)", j, err)
		}
		s.wants(s.get("/ui/election?name=billing&at=2000-01-01T02:12:00Z&tz=UTC"), 200, "web-1 led")
		s.wants(s.get("/ui/election?name=billing&at=soon"), 400, "write 03:12")
		s.wants(s.get("/ui/election?name=billing&at=03:12&tz=Mars"), 400, "Europe/Vienna")
	})
}

// Others write names, IDs, values, notes and reasons. Nothing of that may become part of the page
// itself, in any view.
func TestNothingThatOthersWroteBecomesMarkup(t *testing.T) {
	for _, evil := range []string{`"><script>alert(1)</script>`, `'><img src=x onerror=alert(1)>`,
		"javascript:alert(1)",
		"\u202Egnillib", `{{.}}</title></style>`, strings.Repeat("é", 127), "../..%2f?a=b&c#d", "-o json"} {
		within(t, Options{Actions: true, Person: evil}, func(s *site) {
			leader := s.stands(evil, evil, evil)
			s.stands("next", evil, evil)
			token := leader.Terms()[0].Token()
			q := url.Values{"name": {evil}, "id": {evil}, "prefix": {evil}, "member": {evil}, "token": {token.String()}}
			form := func(verb string) string { return "/ui/act?" + "verb=" + verb + "&" + q.Encode() }
			s.wants(s.ask("POST", "/ui/act", s.filled(form("transfer"), evil)), 303)
			time.Sleep(5 * time.Second)
			token = s.leader(evil).Token
			q.Set("token", token.String())
			for _, path := range []string{"/ui/", "/ui/?" + q.Encode(), "/ui/election?" + q.Encode(),
				"/ui/members?" + q.Encode(),
				"/ui/member?" + q.Encode(), "/ui/cron", "/ui/job?" + q.Encode(), form("resign"), form("transfer"),
				form("drain"), "/ui/" + url.PathEscape(evil), "/ui/election?name=" + url.QueryEscape(evil) + "%00",
				"/ui/election?" + q.Encode() + "&at=" + url.QueryEscape(evil), form("evil"),
				"/ui/login?to=" + url.QueryEscape(evil)} {
				got := s.get(path)
				text := got.text
				if n := strings.Count(text, "<script"); got.Code != 303 && n != 1 {
					s.Errorf("%s has %d scripts", path, n)
				}
				text = value.ReplaceAllString(text, "") // of forms, which give back what they got
				for _, no := range []string{"ZgotmplZ", "<img", `href="javascript:`, `src="javascript:`,
					"onerror=alert(1)>", "\u202E",
					"</style>"} {
					if strings.Contains(text, no) {
						s.Errorf("%s has %q", path, no)
					}
				}
				if got.Code == 500 {
					s.Errorf("%s: %s", path, mainOf(text))
				}
				if j := s.get(path, "Accept", "application/json"); j.Code == 200 && !strings.HasPrefix(path,
					"/ui/act") &&
					!json.Valid([]byte(j.text)) {
					s.Errorf("%s is no JSON: %s", path, j.text)
				}
			}
		})
	}
}

func (s *site) leader(name string) primacy.Entry {
	s.Helper()
	l, err := s.o.Session.Election(name).Leader(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	return l
}

var (
	field  = regexp.MustCompile(`<(?:input|select)[^>]*name="([^"]*)"[^>]*?(?:value="([^"]*)")?[^>]*>`)
	value  = regexp.MustCompile(`value="([^"]*)"`)
	entity = strings.NewReplacer("&#34;", `"`, "&#39;", "'", "&lt;", "<", "&gt;", ">", "&#43;", "+", "&amp;", "&")
)

// filled is the form of a page, with what a person types.
func (s *site) filled(path, by string) url.Values {
	s.Helper()
	got := s.wants(s.get(path), 200)
	form := url.Values{}
	for _, m := range field.FindAllStringSubmatch(got.text, -1) {
		v := ""
		if in := value.FindStringSubmatch(m[0]); in != nil {
			v = in[1]
		}
		if m[1] == "to" {
			_, after, _ := strings.Cut(got.text, m[0])
			v = value.FindStringSubmatch(after)[1]
		}
		form.Set(m[1], entity.Replace(v))
	}
	form.Set("by", by)
	form.Set("reason", "a test")
	return form
}

func TestEveryAnswerIsHardened(t *testing.T) {
	within(t, Options{Token: "0123456789abcdef", Actions: true}, func(s *site) {
		s.stands("web-1", "billing", "")
		s.job("nightly")
		check := func(path string, got reply) {
			h := got.Header()
			csp := h.Get("Content-Security-Policy")
			for _, want := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'",
				"frame-ancestors 'none'",
				"form-action 'self'", "base-uri 'none'"} {
				if !strings.Contains(csp, want) {
					t.Errorf("%s: the policy lacks %q: %s", path, want, csp)
				}
			}
			if strings.Contains(csp, "unsafe") {
				t.Errorf("%s: %s", path, csp)
			}
			if h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Referrer-Policy") != "no-referrer" {
				t.Errorf("%s: %v", path, h)
			}
			if stays := h.Get("Cache-Control") != "no-store"; stays != strings.Contains(path, "assets") {
				t.Errorf("%s may be kept: %q", path, h.Get("Cache-Control"))
			}
			for _, no := range []string{" style=", "<style", " onclick=", " onload=", "javascript:", s.o.Token,
				"http-equiv=\"set"} {
				if strings.Contains(got.text, no) {
					t.Errorf("%s has %q", path, no)
				}
			}
		}
		for _, path := range append(paths, hashed.CSS, hashed.JS, hashed.Icon, "/ui/events/cron?seen=x&name=%0A") {
			check(path, s.get(path))
			if !strings.Contains(path, "events") {
				check(path, s.get(path, "Authorization", "Bearer "+s.o.Token))
			}
		}
	})
}

// All that a browser loads is small, and it asks for that once.
func TestTheAssetsAreSmallAndKept(t *testing.T) {
	within(t, Options{}, func(s *site) {
		sum := 0
		for _, path := range []string{hashed.CSS, hashed.JS, hashed.Icon} {
			got := s.wants(s.get(path), 200)
			sum += len(got.text)
			if !strings.Contains(got.Header().Get("Cache-Control"), "immutable") ||
				got.Header().Get("Content-Type") == "" {
				t.Errorf("%s: %v", path, got.Header())
			}
		}
		if sum > 100_000 || sum == 0 {
			t.Errorf("the assets have %d bytes", sum)
		}
		s.wants(s.get("/ui/assets/older/page.css"), 404)
		s.wants(s.get("/ui/assets/"+hash+"/../doc.go"), 404)
	})
}

// What a page shows is loaded anew by itself where there is no script, and no form loses what was
// typed by that.
func TestWithoutScript(t *testing.T) {
	within(t, Options{Actions: true}, func(s *site) {
		leader := s.stands("web-1", "billing", "")
		again := `<noscript><meta http-equiv="refresh"`
		for _, path := range []string{"/ui/", "/ui/election?name=billing", "/ui/members", "/ui/cron", "/ui/store"} {
			s.wants(s.get(path), 200, again)
		}
		form := s.get("/ui/act?verb=resign&name=billing&token=" + leader.Terms()[0].Token().String())
		if s.wants(form, 200, "<form"); strings.Contains(form.text, again) {
			t.Error("a form is loaded anew while it is filled in")
		}
	})
}

// A page must not look live when it is not.
func TestAStoreThatDoesNotAnswerIsTold(t *testing.T) {
	within(t, Options{}, func(s *site) {
		s.stands("web-1", "billing", "")
		if got := s.wants(s.get("/ui/"), 200, "web-1"); strings.Contains(got.text, "Not the present") {
			t.Error("it says that it is old, at once")
		}
		s.down.Store(true)
		time.Sleep(5 * time.Second)
		s.wants(s.get("/ui/"), 200, "web-1", "Not the present", "nobody is there", "was read at")
		got := s.get("/ui/", "Accept", "application/json")
		var j struct{ Stale bool }
		if err := json.Unmarshal([]byte(got.text), &j); err != nil || !j.Stale {
			t.Errorf("JSON does not say that it is old: %v, %s", err, got.text)
		}
		s.down.Store(false)
		time.Sleep(5 * time.Second)
		if got := s.wants(s.get("/ui/"), 200, "web-1"); strings.Contains(got.text, "Not the present") {
			t.Error("it still says that it is old")
		}
	})
}

// A store that has never answered: the page comes, and says so.
func TestAStoreThatHasNeverAnswered(t *testing.T) {
	within(t, Options{}, func(s *site) {
		s.down.Store(true)
		s.wants(s.get("/ui/"), 200, "Not the present", "Nothing has been read yet")
	})
}

func TestALongListHasPages(t *testing.T) {
	within(t, Options{}, func(s *site) {
		own := s.session("web-1")
		for i := range 450 {
			if _, err := own.Election(fmt.Sprintf("e-%03d", i)).Campaign(s.Context(), nil); err != nil {
				t.Fatal(err)
			}
		}
		s.wants(s.get("/ui/"), 200, "450 elections", "e-000", "e-199", "page 2 →", "1 to 200 of 450")
		last := s.wants(s.get("/ui/?prefix=e&page=3"), 200, "e-400", "e-449", "← page 2", "401 to 450 of 450",
			"prefix=e")
		if strings.Contains(last.text, "e-399") {
			t.Error("a row is on two pages")
		}
	})
}

// An examination runs once for all who ask, and what it finds stays.
func TestTheStoreIsExaminedOnce(t *testing.T) {
	var runs atomic.Int64
	o := Options{Actions: true, Examine: func(_ context.Context, tell func(doctor.Check)) *doctor.Report {
		runs.Add(1)
		c := doctor.Check{Topic: "clock", Level: driver.Warning, Found: "it is slow", Advice: "mend it"}
		tell(c)
		time.Sleep(8 * time.Second)
		return &doctor.Report{Checks: []doctor.Check{c}}
	}}
	within(t, o, func(s *site) {
		first := s.wants(s.get("/ui/store"), 200, "Not examined yet")
		s.wants(s.get("/ui/store", "Accept", "application/json"), 200, `"examined_at":null`)
		_, after, _ := strings.Cut(first.text, `name="seal"`)
		form := url.Values{"seal": {value.FindStringSubmatch(after)[1]}}
		s.wants(s.ask("POST", "/ui/store/examine", url.Values{"seal": {"x"}}), 403)
		s.wants(s.get("/ui/store/examine"), 405)
		for range 3 {
			s.wants(s.ask("POST", "/ui/store/examine", form), 303)
		}
		time.Sleep(time.Second)
		s.wants(s.get("/ui/store"), 200, "under way", "it is slow")
		time.Sleep(10 * time.Second)
		s.wants(s.get("/ui/store"), 200, "1 warning", "it is slow", "mend it")
		if n := runs.Load(); n != 1 {
			t.Errorf("examined %d times", n)
		}
	})
}

// All templates are made of what they are given, also where it is empty.
func TestNoTemplateFails(t *testing.T) {
	within(t, Options{Actions: true}, func(s *site) {
		for _, path := range paths {
			if got := s.get(path); got.Code >= 500 {
				t.Errorf("%s: %d: %s", path, got.Code, mainOf(got.text))
			}
		}
		for name, tpl := range pages() {
			if tpl.Lookup("main") == nil {
				t.Errorf("%s has no main", name)
			}
		}
	})
}

// Before anything was read nothing is known: not that all is well, and not that nobody leads.
func TestNothingIsSaidOfWhatWasNotRead(t *testing.T) {
	within(t, Options{}, func(s *site) {
		s.stands("web-1", "billing", "")
		s.down.Store(true)
		for _, path := range []string{"/ui/", "/ui/election?name=billing", "/ui/members", "/ui/shards",
			"/ui/member?id=web-1"} {
			got := s.wants(s.get(path), 200, "ot known")
			for _, no := range []string{"nothing in trouble", "0 elections", "Nobody leads or waits", ">nobody<",
				">Nothing.<", `num">0<`,
				"No such member", "There is no group"} {
				if strings.Contains(got.text, no) {
					t.Errorf("%s says %q", path, no)
				}
			}
		}
		s.wants(s.get("/ui/group?name=tenants"), 503, "not known", "nobody is there")
		s.wants(s.get("/ui/election?name=billing", "Accept", "application/json"), 200, `"health":"not known"`)
	})
}

// To examine the store takes a lease in it: who may only look may not.
func TestAnExaminationIsARequest(t *testing.T) {
	o := Options{Examine: func(context.Context, func(doctor.Check)) *doctor.Report { panic("it was examined") }}
	within(t, o, func(s *site) {
		got := s.wants(s.get("/ui/store"), 200, "primacy doctor")
		if strings.Contains(got.text, "Examine the store now") {
			t.Error("it is offered")
		}
		form := url.Values{"seal": {s.login.seal("examine")}}
		s.wants(s.ask("POST", "/ui/store/examine", form), 403, "--ui-actions")
	})
}

// slowJobs is a store whose journals of jobs take their time.
type slowJobs struct {
	*memstore.Store
	takes time.Duration
	reads atomic.Int64
}

func (s *slowJobs) Records(ctx context.Context, name, before string, limit int) ([]driver.Record, error) {
	s.reads.Add(1)
	if strings.HasPrefix(name, cron.Prefix) {
		select {
		case <-time.After(s.takes):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return s.Store.Records(ctx, name, before, limit)
}

// Jobs are read several at a time, what was read is kept where others could not be, and the view of
// one is read once for all its tabs.
func TestJobsOfASlowStoreAreRead(t *testing.T) {
	within(t, Options{}, func(s *site) {
		for i := range 60 {
			s.job(fmt.Sprintf("job-%02d", i))
		}
		slow := &slowJobs{Store: s.store, takes: 100 * time.Millisecond}
		s.cron.store, s.o.Store = slow, slow
		s.cron.timeout = 10 * time.Second
		s.wants(s.get("/ui/cron"), 200, "job-59", "60 jobs")
		time.Sleep(3 * time.Second)
		s.cron.timeout = time.Nanosecond
		s.cron.at = time.Time{}
		if got := s.get("/ui/cron", "Accept", "application/json").text; !strings.Contains(got, `"error":`) &&
			!strings.Contains(got, "job-59") {
			t.Error(got)
		}
		s.cron.timeout = 10 * time.Second
		s.get("/ui/job?name=job-01")
		n := slow.reads.Load()
		for i := range 10 {
			s.wants(s.get(fmt.Sprintf("/ui/job?name=job-01&tab=%d", i)), 200, "the disk is full")
		}
		if got := slow.reads.Load() - n; got != 0 {
			t.Errorf("ten more tabs of one job read %d times", got)
		}
	})
}
