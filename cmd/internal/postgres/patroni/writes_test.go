package patroni

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/etcdstore"
)

// table is keys in memory.
type table struct {
	keys map[string]string
	err  error
}

func (k *table) Beside(_ context.Context, prefix string) (all []etcdstore.BesideKey, err error) {
	for key, value := range k.keys {
		if strings.HasPrefix(key, prefix) {
			all = append(all, etcdstore.BesideKey{Key: key, Value: []byte(value), Version: 1})
		}
	}
	return all, k.err
}

func (k *table) WriteBeside(_ context.Context, _ string, _ uint64, writes ...etcdstore.BesideWrite) (bool, error) {
	for _, w := range writes {
		now, there := k.keys[w.Key]
		is := etcdstore.BesideKey{Key: w.Key, Value: []byte(now)}
		if there {
			is.Version = 1
		}
		switch {
		case w.Only != nil && !w.Only(is):
		case w.Value == nil:
			delete(k.keys, w.Key)
		default:
			k.keys[w.Key] = string(w.Value)
		}
	}
	return true, k.err
}

// TestWhoMayAsk: without authentication only this machine is obeyed, with it nobody else than who
// is known.
func TestWhoMayAsk(t *testing.T) {
	const there = "10.0.0.9:5000"
	open, basic, bearer := Guard{}, Guard{Basic: "tools:secret"}, Guard{Token: "0123456789abcdef"}
	certs := Guard{TLS: &tls.Config{ClientCAs: x509.NewCertPool()}}
	for _, x := range []struct {
		name   string
		guard  Guard
		from   string
		header []string
		want   int
	}{
		{"nobody is asked, this machine", open, here, nil, 200},
		{"nobody is asked, another machine", open, there, nil, 403},
		{"nobody is asked, a proxy on this machine", open, here, []string{"X-Forwarded-For", "10.0.0.9"}, 403},
		{"a page of another site", open, here, []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"a password is asked for", basic, here, nil, 401},
		{"a wrong password", basic, there, []string{"Authorization", "Basic dG9vbHM6c2VjcmVu"}, 401},
		{"the password", basic, there, []string{"Authorization", "Basic dG9vbHM6c2VjcmV0"}, 200},
		{"the password as a token", basic, there, []string{"Authorization", "Bearer "}, 401},
		{"a wrong token", bearer, there, []string{"Authorization", "Bearer 0123456789abcdee"}, 401},
		{"the token", bearer, there, []string{"Authorization", "Bearer 0123456789abcdef"}, 200},
		{"a certificate is asked for", certs, here, nil, 401},
	} {
		s := newSite(seen("pg2", nil))
		s.API.Guard = x.guard
		if got, body := s.asks(http.MethodPost, "/restart", "", x.from, x.header...); got != x.want ||
			len(s.verbs.asked) != map[bool]int{true: 1}[x.want == 200] {
			t.Errorf("%s: %d %s, asked %q", x.name, got, body, s.verbs.asked)
		}
		if got, _ := s.asks(http.MethodGet, "/health", "", x.from); got != http.StatusOK {
			t.Errorf("%s: reading is refused: %d", x.name, got)
		}
	}
	s := newSite(seen("pg2", nil))
	s.API.Guard = certs
	r := httptest.NewRequest(http.MethodPost, "https://pg2/restart", nil)
	r.TLS = &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{}}}}
	w := httptest.NewRecorder()
	if s.Handler().ServeHTTP(w, r); w.Code != http.StatusOK {
		t.Errorf("a certificate that was verified: %d", w.Code)
	}
	s = newSite(seen("pg2", nil))
	r = httptest.NewRequest(http.MethodPost, "http://evil.example/restart", nil)
	r.RemoteAddr = here
	w = httptest.NewRecorder()
	if s.Handler().ServeHTTP(w, r); w.Code != http.StatusForbidden {
		t.Errorf("a name that was bound to this machine: %d", w.Code)
	}
}

// TestWrites: what each request is turned into, and how refusals are told.
func TestWrites(t *testing.T) {
	at := time.Now().Add(time.Hour).Format(time.RFC3339)
	leader := map[string]string{"/service/orders/leader": "pg1"}
	for _, x := range []struct {
		method, path, body string
		keys               map[string]string
		code               int
		says, asked        string
	}{
		{"POST", "/switchover", `{"leader":"pg1"}`, leader, 200, `Successfully switched over to "pg2"`, "switchover "},
		{"POST", "/switchover", `{"leader":"pg1","candidate":"pg2"}`, leader, 200, "pg2", "switchover pg2"},
		{"POST", "/switchover", `{"leader":"pg1","candidate":"pg3"}`, leader, 200, `instead of "pg3"`,
			"switchover pg3"},
		{"POST", "/switchover", `{"leader":"pg3"}`, leader, 412, "leader name does not match", ""},
		{"POST", "/switchover", `{"candidate":"pg2"}`, leader, 400, "only from a specific leader", ""},
		{"POST", "/switchover", `{"leader":"pg1","candidate":"pg1"}`, leader, 412, "is the primary already", ""},
		{"POST", "/switchover", `[1]`, leader, 400, "JSON object", ""},
		{"POST", "/failover", `{"candidate":"pg2"}`, leader, 200, `Successfully failed over to "pg2"`,
			"switchover pg2"},
		{"POST", "/failover", `{"leader":"pg1"}`, leader, 400, "only to a specific candidate", ""},
		{"POST", "/failover", `{"candidate":"pg2"}`, nil, 412, "primacy postgres failover", ""},
		{"POST", "/failover", `{"candidate":"pg2","scheduled_at":"` + at + `"}`, leader, 400, "can't be scheduled", ""},
		{"POST", "/switchover", `{"leader":"pg1","scheduled_at":"` + at + `"}`, leader, 202,
			"Switchover scheduled", ""},
		{"POST", "/switchover", `{"leader":"pg1","scheduled_at":"2020-01-01T00:00:00Z"}`, leader, 422, "in the past",
			""},
		{"POST", "/switchover", `{"leader":"pg1","scheduled_at":"soon"}`, leader, 422, "ISO 8601", ""},
		{"DELETE", "/switchover", "", leader, 404, "no switchover is scheduled", ""},
		{"DELETE", "/switchover", "", map[string]string{
			"/service/orders/failover": `{"scheduled_at":"` + at + `"}`}, 200, "deleted", ""},
		{"POST", "/restart", `{}`, nil, 200, "restarted", "restart"},
		{"POST", "/restart", `{"role":"replica"}`, nil, 200, "restarted", "restart"},
		{"POST", "/restart", `{"role":"primary"}`, nil, 503, "conditions are not satisfied", ""},
		{"POST", "/restart", `{"restart_pending":true}`, nil, 503, "conditions are not satisfied", ""},
		{"POST", "/restart", `{"postgres_version":"15"}`, nil, 400, "such as 15.4", ""},
		{"POST", "/restart", `{"schedule":"` + at + `","role":"primary"}`, nil, 202, "Restart scheduled", ""},
		{"POST", "/restart", `{"schedule":"2020-01-01T00:00:00Z"}`, nil, 422, "in the past", ""},
		{"POST", "/restart", `{"schedule":"2020-01-01T00:00:00"}`, nil, 422, "with a time zone", ""},
		{"POST", "/restart", `{"schedule":"` + at + `","role":"king"}`, nil, 400, "primary or replica", ""},
		{"POST", "/restart", `{"schedule":"` + at + `","x":1}`, nil, 400, "Unknown filter", ""},
		{"POST", "/restart", `{"x":1}`, nil, 400, "Unknown filter", ""},
		{"POST", "/restart", `{"timeout":"-1"}`, nil, 400, "positive", ""},
		{"DELETE", "/restart", "", nil, 404, "no restarts", ""},
		{"POST", "/reload", "", nil, 202, "reload scheduled", ""},
		{"POST", "/reinitialize", `{"force":true}`, nil, 200, "reinitialize started", "reinit"},
		{"POST", "/primary", "", nil, 405, "", ""},
		{"GET", "/nosuch", "", nil, 404, "", ""},
		{"POST", "/restart", `{"x":"` + strings.Repeat("x", maxBody) + `"}`, nil, 400, "", ""},
	} {
		s := newSite(seen("pg2", nil))
		s.API.Keys = &table{keys: map[string]string{}}
		for k, v := range x.keys {
			s.API.Keys.(*table).keys[k] = v
		}
		code, body := s.asks(x.method, x.path, x.body, here)
		if code != x.code || !strings.Contains(body, x.says) || strings.Join(s.verbs.asked, ";") != x.asked {
			t.Errorf("%s %s %.80s: %d %s, asked %q; want %d %s, %q", x.method, x.path, x.body, code, body,
				s.verbs.asked, x.code, x.says, x.asked)
		}
	}
	s := newSite(seen("pg2", nil))
	s.API.Keys = &table{keys: leader}
	s.verbs.refuse = Refused{"pg2 is no voter"}
	for path, want := range map[string]int{"/switchover": 412, "/restart": 503, "/reinitialize": 503} {
		body := ""
		if path == "/switchover" {
			body = `{"leader":"pg1","candidate":"pg2"}`
		}
		if got, words := s.asks(http.MethodPost, path, body, here); got != want || words != "pg2 is no voter" {
			t.Errorf("%s, refused: %d %s", path, got, words)
		}
	}
}
