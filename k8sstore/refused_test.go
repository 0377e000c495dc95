package k8sstore_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/k8stest"
	"github.com/primacy-go/primacy/k8sstore"
)

// oneLine fails the test unless err is one line with all of these, and final or not.
func oneLine(t *testing.T, err error, final bool, want ...string) {
	t.Helper()
	if err == nil || strings.Contains(err.Error(), "\n") || errors.Is(err, driver.ErrRefused) != final {
		t.Errorf("got %v, want one line, final: %v", err, final)
		return
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
}

// Without each verb of the role what needs it is refused in one line. Of two it can do without.
func TestEachVerbOfTheRoleIsNeeded(t *testing.T) {
	t.Parallel()
	for _, srv := range []*k8stest.Server{k8stest.StartFake(t), k8stest.Start(t)} {
		s, err := k8sstore.New(config(srv, srv.Addr))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		key := newKey()
		v := put(t, s.Register(), key, "{}", "")
		for verb, call := range map[string]func(r k8sstore.Register) error{
			"get":    func(r k8sstore.Register) error { _, _, err := r.Get(minute(t), key); return err },
			"list":   func(r k8sstore.Register) error { _, err := r.List(minute(t), "line."); return err },
			"watch":  func(r k8sstore.Register) error { _, _, err := r.Watch(minute(t), key, v); return err },
			"create": func(r k8sstore.Register) error { _, _, err := r.Put(minute(t), newKey(), nil, ""); return err },
			"update": func(r k8sstore.Register) error { _, _, err := r.Put(minute(t), key, nil, v); return err },
			"delete": func(r k8sstore.Register) error { return r.Delete(minute(t), key, v) },
		} {
			srv.Allow(slices.DeleteFunc(slices.Clone(k8stest.Verbs), func(v string) bool { return v == verb })...)
			fresh, err := k8sstore.New(config(srv, srv.Addr))
			if err != nil {
				t.Fatal(err)
			}
			oneLine(t, call(fresh.Register()), true, "it may not (403)", verb+" lease", `namespace "elections"`,
				"role.yaml")
			found := ""
			for _, f := range fresh.Examine(minute(t), "x") {
				if f.Topic == "role" && f.Level != driver.Fine {
					found = f.Found
				}
			}
			if found != "may not "+verb+" leases in elections" {
				t.Errorf("doctor says of %s: %q", verb, found)
			}
			if fresh, err := k8sstore.Open(minute(t), config(srv, srv.Addr)); verb == "create" {
				oneLine(t, err, true, "create leases: it may not")
			} else if err != nil {
				t.Errorf("without %s: %v", verb, err)
			} else {
				fresh.Close()
			}
			fresh.Close()
		}
		// Without watch and delete it is slower, and leaves more behind.
		srv.Allow("get", "list", "create", "update")
		l, err := s.Grant(minute(t), "me", 2*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Claim(minute(t), driver.Claim{Name: "n", ID: "c"}); err != nil {
			t.Error(err)
		}
		if err := l.Close(minute(t)); err != nil {
			t.Error(err)
		}
	}
}

func TestWhoAndWhereIsRefusedInOneLine(t *testing.T) {
	both(t, func(t *testing.T, srv *k8stest.Server) {
		open := func(change func(c *k8sstore.Config)) error {
			c := config(srv, srv.Addr)
			change(&c)
			s, err := k8sstore.Open(minute(t), c)
			if err == nil {
				s.Close()
			}
			return err
		}
		oneLine(t, open(func(c *k8sstore.Config) { c.Token = fixed("wrong") }), true, "does not know who asks",
			srv.Addr)
		oneLine(t, open(func(c *k8sstore.Config) { c.Token = fixed(k8stest.NobodyToken) }), true, "it may not",
			"nobody")
		oneLine(t, open(func(c *k8sstore.Config) { c.Namespace = "other"; c.Token = fixed(k8stest.AdminToken) }), true,
			"there is no such namespace", "kubectl create namespace other")
		oneLine(t, open(func(c *k8sstore.Config) { c.TLS = nil }), true, "certificate is not trusted")
		oneLine(t, open(func(c *k8sstore.Config) { c.URL += "/elsewhere"; c.Token = fixed(k8stest.AdminToken) }),
			true, "it has no Leases")
		oneLine(t, open(func(c *k8sstore.Config) { c.URL = "ftp://x" }), true, "https://HOST:PORT")
		oneLine(t, open(func(c *k8sstore.Config) { c.Namespace = "../x" }), true, "no name of a namespace")
		oneLine(t, open(func(c *k8sstore.Config) { c.Prefix = "a.b" }), true, "prefix")
	})
}

// A Lease that is not there is an empty line; a namespace or an API that is not there is none.
func TestALostNamespaceIsNoEmptyLine(t *testing.T) {
	both(t, func(t *testing.T, srv *k8stest.Server) {
		c := config(srv, srv.Addr)
		c.URL, c.Token = c.URL+"/elsewhere", fixed(k8stest.AdminToken)
		s, err := k8sstore.New(c)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		_, _, err = s.Register().Get(minute(t), "line.x")
		oneLine(t, err, true, "it has no Leases")
	})
}

// A token that is refused is asked for again, and the refusal of one that was good is not final.
func TestATokenThatRotates(t *testing.T) {
	both(t, func(t *testing.T, srv *k8stest.Server) {
		file := filepath.Join(t.TempDir(), "token")
		write := func(token string) {
			if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write(k8stest.UserToken)
		good := k8sstore.FileToken(file)
		token, asked := "expired", 0
		c := config(srv, srv.Addr)
		c.Token = func(ctx context.Context, refused string) (string, error) {
			if asked++; refused == "expired" {
				token = k8stest.UserToken
			}
			if token == k8stest.UserToken {
				return good(ctx, refused)
			}
			return token, nil
		}
		s := open(t, c) // with the second token
		if asked != 2 {
			t.Errorf("the token was asked for %d times", asked)
		}
		write("later")
		_, _, err := s.Register().Get(minute(t), "line.x") // the file is not read yet, nor need it be
		if err != nil {
			t.Error(err)
		}
		c.Token = func(context.Context, string) (string, error) { return token, nil }
		s = open(t, c)
		token = "expired"
		_, _, err = s.Register().Get(minute(t), "line.x")
		oneLine(t, err, false, "does not know who asks")
	})
}

func TestAFileWithAToken(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	source := k8sstore.FileToken(file)
	is := func(refused, want string) {
		t.Helper()
		if got, err := source(t.Context(), refused); got != want || (err != nil) != (want == "") {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
	is("", "")
	for _, step := range []struct{ file, refused, want string }{
		{"a\n", "", "a"}, {"b", "", "a"}, {"b", "a", "b"}, {"", "b", "b"}, {"c", "b", "c"},
	} {
		if err := os.WriteFile(file, []byte(step.file), 0o600); err != nil {
			t.Fatal(err)
		}
		is(step.refused, step.want)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	is("c", "c")
}

func TestInAPod(t *testing.T) {
	srv, dir := k8stest.StartFake(t), t.TempDir()
	host, port, _ := strings.Cut(srv.Addr, ":")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := k8sstore.InClusterAt(dir); !errors.Is(err, k8sstore.ErrNotInCluster) {
		t.Error(err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", host)
	t.Setenv("KUBERNETES_SERVICE_PORT", port)
	if _, err := k8sstore.InClusterAt(dir); !errors.Is(err, k8sstore.ErrNotInCluster) {
		t.Error(err)
	}
	for name, content := range map[string]string{"token": k8stest.UserToken, "ca.crt": string(srv.CA),
		"namespace": k8stest.Namespace} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := k8sstore.InClusterAt(dir)
	if err != nil {
		t.Fatal(err)
	}
	open(t, c)
}

// answers is a server of which each answer is written down: status, Retry-After, body.
type answers struct {
	all  []answer
	sent []time.Time
}

type answer struct {
	code  int
	after string
	body  string
}

func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	a.sent = append(a.sent, time.Now())
	next := a.all[min(len(a.sent), len(a.all))-1]
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	h := http.Header{}
	if next.after != "" {
		h.Set("Retry-After", next.after)
	}
	return &http.Response{StatusCode: next.code, Header: h, Body: io.NopCloser(strings.NewReader(next.body)),
		Request: r}, nil
}

const (
	aLease = `{"kind":"Lease","metadata":{"name":"primacy.line-x","uid":"u","resourceVersion":"7",
		"annotations":{"primacy-go.github.io/value":"v"}}}`
	about     = `,"details":{"name":"primacy.line-x","kind":"leases"}}`
	noLease   = `{"kind":"Status","message":"not found","reason":"NotFound"` + about
	forbidden = `{"kind":"Status","message":"forbidden","reason":"Forbidden"` + about
)

// played runs f, in time that passes by itself, over a server that gives those answers.
func played(t *testing.T, f func(t *testing.T, r k8sstore.Register, a *answers), all ...answer) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a := &answers{all: all}
		s, err := k8sstore.New(k8sstore.Config{URL: "https://server", Namespace: "n",
			Client: &http.Client{Transport: a}})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		f(t, s.Register(), a)
	})
}

func TestWhatTheServerAsksToBeRepeatedIsRepeatedThen(t *testing.T) {
	for _, code := range []int{429, 503} {
		played(t, func(t *testing.T, r k8sstore.Register, a *answers) {
			value, _, err := r.Get(t.Context(), "line.x")
			if string(value) != "v" || err != nil || len(a.sent) != 3 || a.sent[1].Sub(a.sent[0]) != 7*time.Second ||
				a.sent[2].Sub(a.sent[1]) != time.Second {
				t.Errorf("%d: %s, %v, asked at %v", code, value, err, a.sent)
			}
		}, answer{code, "7", "busy"}, answer{code, "1", "busy"}, answer{200, "", aLease})
		played(t, func(t *testing.T, r k8sstore.Register, a *answers) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			_, _, err := r.Get(ctx, "line.x")
			oneLine(t, err, false, "server: get lease primacy.line-x")
			if len(a.sent) != 1 || time.Since(a.sent[0]) != 2*time.Second {
				t.Errorf("asked at %v", a.sent)
			}
		}, answer{code, "7", "busy"})
	}
}

func TestWhichAnswersAreFinal(t *testing.T) {
	for _, c := range []struct {
		code  int
		body  string
		final bool
	}{
		{400, "x", true}, {401, "x", true}, {403, forbidden, true}, {404, "x", true},
		{404, `{"message":"x","details":{"kind":"namespaces"}}`, true},
		{405, "x", true}, {413, "x", true}, {422, "x", true},
		{302, "x", false}, {409, "x", false}, {429, "x", false}, {500, "a\nb", false}, {502, "<html>\n", false},
		{503, "x", false}, {504, "x", false},
		{200, "<html>", false}, {200, "{}", false}, {200, strings.Replace(aLease, "line-x", "line-y", 1), false},
	} {
		played(t, func(t *testing.T, r k8sstore.Register, _ *answers) {
			_, _, err := r.Get(t.Context(), "line.x")
			oneLine(t, err, c.final, "server: get lease primacy.line-x: ")
		}, answer{c.code, "", c.body})
	}
	played(t, func(t *testing.T, r k8sstore.Register, _ *answers) {
		if _, version, err := r.Get(t.Context(), "line.x"); version != "" || err != nil {
			t.Errorf("a Lease that is not there: %q, %v", version, err)
		}
	}, answer{404, "", noLease})
}

// A 503 may come of a proxy that has passed the write on: what is answered to the second try says
// nothing of the first.
func TestAFinalAnswerSaysNothingOfATryBefore(t *testing.T) {
	for _, code := range []int{http.StatusServiceUnavailable, http.StatusTooManyRequests} {
		played(t, func(t *testing.T, r k8sstore.Register, _ *answers) {
			_, ok, err := r.Put(t.Context(), "line.x", []byte("v"), "")
			final := errors.Is(err, driver.ErrRefused)
			if ok || err == nil || final != (code == http.StatusTooManyRequests) {
				t.Errorf("after %d: %v, %v", code, ok, err)
			}
		}, answer{code, "1", ""}, answer{http.StatusForbidden, "", forbidden})
	}
}

// A server that has just started does not know all roles yet: what was allowed is refused for a
// moment.
func TestWhatWasAllowedIsNotRefusedForGoodAtOnce(t *testing.T) {
	played(t, func(t *testing.T, r k8sstore.Register, a *answers) {
		if _, _, err := r.Get(t.Context(), "line.x"); err != nil {
			t.Fatal(err)
		}
		_, _, err := r.Get(t.Context(), "line.x")
		oneLine(t, err, false, "it may not (403)")
		time.Sleep(59 * time.Second)
		_, _, err = r.Get(t.Context(), "line.x")
		oneLine(t, err, false, "it may not (403)")
		time.Sleep(2 * time.Second)
		_, _, err = r.Get(t.Context(), "line.x")
		oneLine(t, err, true, "it may not (403)")
	}, answer{200, "", aLease}, answer{403, "", forbidden})
}

func TestATermOutlivesARestartOfTheServer(t *testing.T) {
	t.Parallel()
	for _, srv := range []*k8stest.Server{k8stest.StartFake(t), k8stest.Start(t)} {
		s := open(t, config(srv, srv.Addr))
		l, err := s.Grant(minute(t), "me", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		places, err := l.Claim(minute(t), driver.Claim{Name: "n", ID: "c"})
		if err != nil {
			t.Fatal(err)
		}
		ln, err := s.Line(minute(t), "n")
		if err != nil {
			t.Fatal(err)
		}
		changed := make(chan error, 1)
		go func() {
			_, err := s.Next(minute(t), "n", ln.Revision)
			for err != nil && !driver.IsFinal(err) && t.Context().Err() == nil {
				_, err = s.Next(minute(t), "n", ln.Revision)
			}
			changed <- err
		}()
		srv.Kill()
		err = l.Renew(minute(t))
		oneLine(t, err, false, "renew: ", srv.Addr)
		srv.Restart()
		for err = l.Renew(minute(t)); err != nil && !driver.IsFinal(err); {
			err = l.Renew(minute(t))
		}
		if err != nil {
			t.Fatalf("Renew after the restart: %v", err)
		}
		if err := l.Release(minute(t), places...); err != nil {
			t.Error(err)
		}
		if err := <-changed; err != nil {
			t.Errorf("who followed the line: %v", err)
		}
	}
}
