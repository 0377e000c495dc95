package health

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/internal/boottime"
)

func ask(h http.Handler, method, path string) (int, string) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
	return w.Code, w.Body.String()
}

// What each path answers in each situation, to GET, HEAD and OPTIONS. No answer but that of
// leadership depends on leadership.
func TestWhatIsAnswered(t *testing.T) {
	var leads, ready, alive bool
	sick := func(well *bool) func() error {
		return func() error {
			if *well {
				return nil
			}
			return errors.New("it is not")
		}
	}
	h := Options{Name: "n", Ready: sick(&ready), Alive: sick(&alive),
		Leads: func(name string, token primacy.Token) (Lead, bool) {
			return Lead{"me", 7, boottime.Now() + time.Minute}, leads && name == "n" && (token == 0 || token == 7)
		}}.Handler()
	code := map[bool]int{true: 200, false: 503}
	for i := range 8 {
		leads, ready, alive = i&1 > 0, i&2 > 0, i&4 > 0
		want := map[string]int{"/replica": code[ready && !leads], "/replica/n": code[ready && !leads],
			"/livez": code[alive], "/liveness": code[alive],
			"/leader/m": 503, "/leader?election=m": 503, "/leader?token=8": 503, "/leader?token=7": code[leads],
			"/leader?election=n&token=7": code[leads], "/replica/m": code[ready],
			"/leader?token=x": 400, "/leader?token=0": 400, "/leader/a%0Ab": 400,
			"/leader/" + strings.Repeat("x", 256): 400, "/leader/": 404, "/metrics": 404, "/": 404,
			"//leader/n": 404}
		for _, p := range []string{"/leader", "/primary", "/master", "/read-write", "/leader/n", "/primary/n",
			"/master/n", "/read-write/n", "/leader?election=n", "/leader/%6E"} {
			want[p] = code[leads]
		}
		for _, p := range []string{"/readyz", "/readiness", "/health", "/read-only"} {
			want[p] = code[ready]
		}
		for path, status := range want {
			for _, method := range []string{"GET", "HEAD", "OPTIONS"} {
				if got, body := ask(h, method, path); got != status || method == "OPTIONS" && got < 400 && body != "" {
					t.Errorf("leads %v, ready %v, alive %v: %s %s: %d %s, want %d", leads, ready, alive, method, path,
						got, body, status)
				}
			}
		}
		for _, method := range []string{"POST", "PUT", "DELETE"} {
			if got, _ := ask(h, method, "/leader/n"); got != 405 {
				t.Errorf("%s: %d", method, got)
			}
		}
	}
	if got, body := ask(Options{Leads: func(string, primacy.Token) (Lead, bool) { return Lead{}, true }}.Handler(),
		"GET", "/leader"); got != 400 || !strings.Contains(body, "which election") {
		t.Errorf("without a name: %d %s", got, body)
	}
}

// A right that is over by the clock is no right, whatever is said of it; what is left of one is
// told a tenth short.
func TestTheClockDecides(t *testing.T) {
	for left, want := range map[time.Duration]int{time.Minute: 200, -time.Nanosecond: 503, 0: 503,
		10 * time.Second: 200} {
		h := Options{Leads: func(string, primacy.Token) (Lead, bool) {
			return Lead{"me", 7, boottime.Now() + left},
				true
		}}.Handler()
		got, body := ask(h, "GET", "/leader/n")
		var a Answer
		if err := json.Unmarshal([]byte(body), &a); err != nil || got != want || a.Leads != (want == 200) {
			t.Errorf("%v: %d %s", left, got, body)
		}
		if most := (left - left/10).Milliseconds(); want == 200 &&
			(a.LeaseMS > most || a.LeaseMS < most-5000 || a.Token != 7) {
			t.Errorf("%v: lease_ms is %d, want a little less than %d", left, a.LeaseMS, most)
		}
	}
	if _, ok := Of("me", nil); ok {
		t.Error("no term leads")
	}
}

// The name of a path is what stands there, not what a file system would make of it.
func TestNamesInPaths(t *testing.T) {
	for _, c := range []struct {
		pattern, path, name string
		ok                  bool
	}{
		{"/x/{name}", "/x/a", "a", true}, {"/x/{name}", "/x/a%2Fb", "a/b", true}, {"/x/{name}", "/x/a/b", "", false},
		{"/x/{name}", "/x/", "", false}, {"/x/{name}", "/x", "", false},
		{"/x/{name}", "/x/%", "", false}, {"/x/{name}", "/x/..", "..", true}, {"/x/{name}", "/x/+", "+", true},
		{"/x/{name}/y", "/x/a/y", "a", true}, {"/x/{name}/y", "/x/y", "", false},
		{"/x/{name}/y", "/x/a/b/y", "", false}, {"/x/{name}/y", "/x//y", "", false},
		{"/x/{name...}", "/x/a//b/../c", "a//b/../c", true}, {"/x/{name...}", "/x/a%2Fb/c", "a/b/c", true},
		{"/x/{name...}", "/x/", "", false}, {"/x", "/x", "", true}, {"/x", "/x/", "", false},
		{"/x/{name}/y", "/x/a%2Fy/y", "a/y", true},
	} {
		if name, ok := match(c.pattern, c.path); ok != c.ok || ok && name != c.name {
			t.Errorf("%s on %s: %q %v", c.pattern, c.path, name, ok)
		}
	}
}

func TestAProblemIsOneLine(t *testing.T) {
	p := Invalid.Problem("primacy: %s", "a\nb\x00c\xff")
	if p.Detail != "a b c\uFFFD" || p.Type != "urn:primacy:invalid" || p.Status != 400 {
		t.Errorf("got %+v", p)
	}
}

// A loop that hangs is seen, and seen to run again.
func TestPulse(t *testing.T) {
	hang := make(chan struct{})
	beats := 0
	p := NewPulse(t.Context(), 2*time.Second, func() {
		if beats++; beats == 2 {
			<-hang
		}
	})
	if err := p.Alive(); err != nil {
		t.Error(err)
	}
	await := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal(what)
			}
		}
	}
	await("a loop that hangs is not seen", func() bool { return p.Alive() != nil })
	if !strings.Contains(fmt.Sprint(p.Alive()), "has not run for") {
		t.Error(p.Alive())
	}
	close(hang)
	await("a loop that runs again is not seen", func() bool { return p.Alive() == nil })
}
