package page

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"
)

const secretToken = "0123456789abcdef"

func TestABrowserLogsInOnce(t *testing.T) {
	within(t, Options{Token: secretToken}, func(s *site) {
		s.stands("web-1", "billing", "")
		got := s.wants(s.get("/ui/election?name=billing"), 303)
		to := got.Header().Get("Location")
		if to != "/ui/login?to=%2Fui%2Felection%3Fname%3Dbilling" {
			t.Errorf("it leads to %s", to)
		}
		if form := s.wants(s.get(to), 200, "<form", "password"); strings.Contains(form.text, "memory") ||
			strings.Contains(form.text, "mem://") {
			t.Error("who has not logged in learns what store it is")
		}
		for _, token := range []string{"", "x", secretToken + "x", secretToken[:15]} {
			s.wants(s.ask("POST", "/ui/login", url.Values{"token": {token}}), 401, "That is not the token")
		}
		in := s.wants(s.ask("POST", "/ui/login", url.Values{"token": {secretToken},
			"to": {"/ui/election?name=billing"}}), 303)
		if to := in.Header().Get("Location"); to != "/ui/election?name=billing#" {
			t.Errorf("it leads to %s", to)
		}
		c := in.Result().Cookies()[0]
		if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != "/ui/" || c.Secure ||
			strings.Contains(c.Value, secretToken) {
			t.Errorf("the cookie is %v", c)
		}
		cookie := c.Name + "=" + c.Value
		s.wants(s.get("/ui/election?name=billing", "Cookie", cookie), 200, "web-1", "Log out")
		s.wants(s.get("/ui/", "Cookie", c.Name+"="+c.Value+"0"), 303)
		s.wants(s.get("/ui/", "Cookie", c.Name+"=9999999999.00"), 303)
		other := New(s.o)
		defer other.Close()
		mine := s.Page
		s.Page = other
		s.wants(s.get("/ui/", "Cookie", cookie), 303)
		s.Page = mine
		out := s.wants(s.ask("POST", "/ui/logout", url.Values{}, "Cookie", cookie), 303).Result().Cookies()[0]
		if out.MaxAge >= 0 || out.Name != c.Name {
			t.Errorf("logging out leaves %v", out)
		}
		time.Sleep(staysIn + time.Second)
		s.wants(s.get("/ui/", "Cookie", cookie), 303)
	})
}

func TestAProgramSendsTheToken(t *testing.T) {
	within(t, Options{Token: secretToken}, func(s *site) {
		s.wants(s.get("/ui/", "Accept", "application/json"), 401)
		s.wants(s.get("/ui/events"), 401)
		s.wants(s.ask("POST", "/ui/act", url.Values{}), 401)
		s.wants(s.get("/ui/", "Accept", "application/json", "Authorization", "Bearer wrong"), 401)
		s.wants(s.get("/ui/", "Accept", "application/json", "Authorization", "Bearer "+secretToken), 200,
			`"elections":[]`)
	})
}

// A login leads to a view of this page and to no other site.
func TestALoginLeadsNowhereElse(t *testing.T) {
	within(t, Options{Token: secretToken}, func(s *site) {
		for _, to := range []string{"https://evil.example/", "//evil.example/ui/", "/\\evil.example", "/ui/\\evil",
			"/v1/elections",
			"/ui/\r\nSet-Cookie: a=b", "javascript:alert(1)"} {
			got := s.wants(s.ask("POST", "/ui/login", url.Values{"token": {secretToken}, "to": {to}}), 303)
			if where := got.Header().Get("Location"); where != "/ui/#" {
				t.Errorf("to=%q leads to %s", to, where)
			}
		}
	})
}

// Who has not logged in learns nothing of the store, by no request.
func TestWhoHasNotLoggedInLearnsNothing(t *testing.T) {
	within(t, Options{Token: secretToken, Actions: true}, func(s *site) {
		for method, path := range map[string]string{"POST": "/ui/", "GET": "/ui/events", "PUT": "/ui/act"} {
			got := s.ask(method, path, url.Values{})
			for _, no := range []string{"mem://here", "Requests to leaders", "Overview</a></li>"} {
				if got.Code != 401 || strings.Contains(got.text, no) {
					t.Errorf("%s %s is answered %d, with %q", method, path, got.Code, no)
				}
			}
		}
		if got := s.get("/ui/login"); strings.Contains(got.text, "Requests to leaders") {
			t.Error("the login says that requests are allowed")
		}
	})
}

// A stream ends with the login that opened it. The store is read once a minute, not twice a second:
// in half a day of fake time that would be 86,400 times.
func TestAStreamEndsWithItsLogin(t *testing.T) {
	within(t, Options{Token: secretToken, Every: time.Minute}, func(s *site) {
		c := s.ask("POST", "/ui/login", url.Values{"token": {secretToken}}).Result().Cookies()[0]
		tb := s.opens("/ui/events", "Cookie", "primacy-0="+c.Value) // of a host without a port
		go func() {
			for tb.lines.Scan() {
			}
		}()
		time.Sleep(staysIn - time.Minute)
		select {
		case <-tb.ended:
			t.Fatal("it has ended before the login")
		default:
		}
		time.Sleep(2 * time.Minute)
		select {
		case <-tb.ended:
		default:
			t.Error("it goes on after the login has ended")
		}
	})
}

// Who logs out is out: with the cookie, wherever a copy of it is, and in all tabs.
func TestWhoLogsOutIsOut(t *testing.T) {
	within(t, Options{Token: secretToken}, func(s *site) {
		first, second := s.logsIn(), s.logsIn()
		tb := s.opens("/ui/events", "Host", "localhost:8080", "Cookie", first)
		other := s.opens("/ui/events", "Host", "localhost:8080", "Cookie", second)
		tb.next()
		other.next()
		s.wants(s.ask("POST", "/ui/logout", url.Values{}, "Cookie", first), 303)
		if e := tb.next(); e.name != "out" {
			s.Fatalf("the tab is told %+v", e)
		}
		<-tb.ended
		s.wants(s.get("/ui/", "Cookie", first), 303)
		s.wants(s.get("/ui/", "Cookie", second), 200)
		s.stands("web-1", "billing", "")
		other.until("billing")
		s.wants(s.ask("POST", "/ui/logout", url.Values{}, "Cookie", first), 401)
	})
}

// A browser sends the cookie of a loopback address to each port of it, so to those of other users
// of the machine. To them it is worth nothing.
func TestACookieIsOfTheUserWhoLoggedIn(t *testing.T) {
	within(t, Options{Token: secretToken}, func(s *site) {
		s.login.caller = func(r *http.Request) int {
			uid, err := strconv.Atoi(r.Header.Get("As"))
			if err != nil {
				return -1 // of another machine
			}
			return uid
		}
		cookie := s.logsIn("As", "1000")
		s.wants(s.get("/ui/", "Cookie", cookie, "As", "1000"), 200)
		for _, uid := range []string{"1001", "0", ""} {
			s.wants(s.get("/ui/", "Cookie", cookie, "As", uid), 303)
			s.wants(s.get("/ui/events", "Cookie", cookie, "As", uid), 401)
			s.wants(s.ask("POST", "/ui/logout", url.Values{}, "Cookie", cookie, "As", uid), 401)
		}
		s.wants(s.get("/ui/", "Cookie", cookie, "As", "1000"), 200, "Log out")
		s.wants(s.get("/ui/", "Cookie", s.logsIn()), 200)
	})
}

// Logins take so much room and no more; the oldest gives way.
func TestThereIsRoomForSoManyLogins(t *testing.T) {
	within(t, Options{Token: secretToken}, func(s *site) {
		first := s.logsIn()
		time.Sleep(time.Second)
		second := s.logsIn()
		for range mostVisits - 1 {
			s.logsIn()
		}
		s.wants(s.get("/ui/", "Cookie", first), 303)
		s.wants(s.get("/ui/", "Cookie", second), 200)
		if n := len(s.login.all); n != mostVisits {
			t.Errorf("%d logins are kept", n)
		}
		time.Sleep(staysIn + time.Second)
		if s.logsIn(); len(s.login.all) != 1 {
			t.Errorf("%d logins are kept after all but one have ended", len(s.login.all))
		}
	})
}

// The address that the dashboard prints has the token behind #, and a browser takes that along
// where a login leads without one of its own.
func TestALoginLeavesTheTokenBehind(t *testing.T) {
	within(t, Options{Token: secretToken}, func(s *site) {
		cookie := s.logsIn()
		for _, got := range []reply{s.get("/ui/login", "Cookie", cookie),
			s.get("/ui/login?to=%2Fui%2Fcron%23x", "Cookie", cookie),
			s.ask("POST", "/ui/login", url.Values{"token": {secretToken}, "to": {"/ui/cron?prefix=a"}})} {
			s.wants(got, 303)
			if to := got.Header().Get("Location"); !strings.HasSuffix(to, "#") {
				t.Errorf("it leads to %s", to)
			}
		}
	})
}

// logsIn returns the cookie of a login.
func (s *site) logsIn(headers ...string) string {
	s.Helper()
	in := s.wants(s.ask("POST", "/ui/login", url.Values{"token": {secretToken}}, headers...), 303)
	c := in.Result().Cookies()[0]
	return c.Name + "=" + c.Value
}
