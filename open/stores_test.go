package open

import (
	"context"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/k8sstore"
)

func TestPostgresURLs(t *testing.T) {
	for url, want := range map[string]string{
		"postgres://h":                       "postgres://h:5432/",
		"postgresql://u:p@h/db":              "postgres://u@h:5432/db",
		"postgres://u:p%2F%40@h1,h2:1/d%2Fb": "postgres://u@h1:5432,h2:1/d/b",
		"postgres://u@h/db?sslmode=require&schema=x&target_session_attrs=any": "postgres://u@h:5432/db?sslmode=require&target_session_attrs=any",
		"postgres:///db?host=%2Frun%2Fpostgresql":                             "postgres:///db?host=%2Frun%2Fpostgresql",
	} {
		a, err := parse(url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		c, err := postgresConfig(a)
		if err != nil || c.DSN != want || a.password != c.Password || strings.Contains(url, "schema=x") != (c.Prefix == "x") {
			t.Errorf("%s: %+v, %v, want %s", url, c, err, want)
		}
	}
}

// The program's own user may not create the schema, and had no rights to what another created.
func TestTheSchemaGivesTheUserOfTheURLHisRights(t *testing.T) {
	without, err := Schema("postgres://h/db?schema=house")
	if err != nil || strings.Contains(without, "GRANT") {
		t.Errorf("without a user: %v\n%s", err, without)
	}
	with, err := Schema("postgres://app:CANARY@h/db?schema=house")
	if err != nil || !strings.HasPrefix(with, without) || strings.Contains(with, "CANARY") ||
		strings.Count(with[len(without):], `TO "app";`) != 3 {
		t.Errorf("with a user: %v\n%s", err, with[min(len(without), len(with)):])
	}
}

func TestRedisURLs(t *testing.T) {
	a, err := parse("rediss://:p@h/3?prefix=x&replicas=2")
	if err != nil {
		t.Fatal(err)
	}
	c, err := redisConfig(a)
	if err != nil || c.Addrs[0] != "h:6379" || c.Password != "p" || c.Username != "" || c.DB != 3 || c.Prefix != "x" || c.Replicas != 2 || c.TLS == nil {
		t.Errorf("%+v, %v", c, err)
	}
	a, err = parse("redis+quorum://u:p@a,b:1,c?guard=off&max-ttl=10s")
	if err != nil {
		t.Fatal(err)
	}
	q, err := redlockConfig(a)
	if err != nil || strings.Join(q.Addrs, " ") != "a:6379 b:1 c:6379" || q.Guard >= 0 || q.MaxTTL != 10*time.Second || q.Plain || q.TLS != nil {
		t.Errorf("%+v, %v", q, err)
	}
	if a, err = parse("rediss+plain://a?guard=2s"); err != nil {
		t.Fatal(err)
	}
	if q, err = redlockConfig(a); err != nil || !q.Plain || q.TLS == nil || q.Guard != 2*time.Second {
		t.Errorf("%+v, %v", q, err)
	}
}

func TestZooKeeperURLs(t *testing.T) {
	a, err := parse("zks://u:p@a,b:1/x/y?tick=500ms")
	if err != nil {
		t.Fatal(err)
	}
	c, err := zkConfig(a)
	if err != nil || strings.Join(c.Servers, " ") != "a:2181 b:1" || c.Username != "u" || c.Password != "p" || c.Root != "/x/y" || c.TLS == nil || c.Tick != 500*time.Millisecond {
		t.Errorf("%+v, %v", c, err)
	}
}

// A namespace is that of the URL, else that of the context, else the one that kubectl takes.
func TestKubernetesURLs(t *testing.T) {
	t.Setenv("KUBECONFIG", "/dev/null")
	asked, there := "", ""
	Kubeconfig = func(file, context string) (k8sstore.Config, error) {
		asked = file + " " + context
		return k8sstore.Config{URL: "https://h", Namespace: there}, nil
	}
	t.Cleanup(func() { Kubeconfig = nil })
	for _, want := range []struct{ url, there, asked, namespace, prefix string }{
		{"k8s://", "", " ", "default", ""},
		{"k8s://", "team", " ", "team", ""},
		{"k8s://mine?prefix=p", "team", " ", "mine", "p"},
		{"k8s://?kubeconfig=/a/b&context=c", "team", "/a/b c", "team", ""},
	} {
		there = want.there
		a, err := parse(want.url)
		if err != nil {
			t.Fatal(err)
		}
		c, err := k8sConfig(a)
		if err != nil || asked != want.asked || c.Namespace != want.namespace || c.Prefix != want.prefix ||
			c.URL != "https://h" {
			t.Errorf("%s: %q, %+v, %v", want.url, asked, c, err)
		}
	}
}

// TestEachStoreSaysWhatIsWrongWithItsURL goes through Open, which must not get as far as the
// network.
func TestEachStoreSaysWhatIsWrongWithItsURL(t *testing.T) {
	for url, want := range map[string]string{
		"postgres://u:CANARY@h/db?password=CANARY":       "write it before the host",
		"postgres://u:CANARY@h/db?migrate=often":         "use true or false",
		"postgres://u:CANARY@h/db?sslmode=often":         "sslmode is invalid",
		"postgres://u:CANARY@h/db?connect_timeout=often": "invalid connect_timeout",
		"redis://h/x":                       "not the number of a database",
		"redis://h/-1":                      "not the number of a database",
		"redis://a,b":                       "several hosts",
		"redis://a/1?cluster=true":          "only database 0",
		"redis://a?cluster=true&sentinel=m": "do not go together",
		"redis://a?replicas=many":           "use a number from 0 to 100",
		"redis://a?sentinel-user=CANARY":    "go with sentinel=MASTER",
		"redis://a?sentinel=m&sentinel-password-file=/proc/x": "sentinel-password-file: open /proc/x",
		"redis://h?ca=/x":                  "use rediss://",
		"redis://h?foo=CANARY":             `unknown option "foo"`,
		"redis+quorum://a,b,c?ca=/x":       "use rediss+quorum://",
		"redis+quorum://a,b,c?guard=often": "use a duration",
		"redis+quorum://a,a,b":             "twice",
		"redis+plain://a?prefix=x":         `unknown option "prefix"`,
		"zk://u@h":                         "user and password go together",
		"zk://h?tick=soon":                 "use a duration",
		"zk://h?ca=/x":                     "use zks://",
		"k8s://u:CANARY@n":                 "nothing else",
		"k8s://n/x":                        "nothing else",
		"k8s://n?password-file=/proc/x":    `unknown option "password-file"`,
		"k8s://n?token=CANARY":             `unknown option "token"`,
		"k8s://n?context=x":                "with client-go at hand use k8sstore.New",
	} {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		st, err := Open(ctx, url)
		cancel()
		if err == nil {
			st.Close()
		}
		refused := errors.Is(err, driver.ErrRefused) && !strings.HasPrefix(url, "postgres")
		if !errors.Is(err, ErrURL) && !refused || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: got %v, want one line with %q", url, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "CANARY") {
			t.Errorf("%q: a password is in the error: %v", url, err)
		}
	}
}

// FuzzStoreURL holds every scheme to: no panic, and no part of a password in an error.
func FuzzStoreURL(f *testing.F) {
	for _, s := range []string{"", "p", "/", "?", "#", "@", ":", "%", "%2F", "a/b", "a?b=c", "@/@", ",x@y,", "[::1]", "\n", "\x00", "\xff", "?password=", "?sslmode="} {
		f.Add(s, "h:1/1?prefix=x")
	}
	f.Fuzz(func(t *testing.T, pw, rest string) {
		const mark = "SWORDFISH"
		if strings.Contains(rest, mark) || strings.Contains(pw, mark) {
			t.Skip()
		}
		for scheme := range kinds {
			a, err := parse(scheme + "://user:" + mark + pw + mark + "@" + rest)
			if err == nil {
				switch {
				case strings.HasPrefix(scheme, "postgres"):
					_, err = postgresConfig(a)
				case strings.Contains(scheme, "+"):
					_, err = redlockConfig(a)
				case strings.HasPrefix(scheme, "zk"):
					_, err = zkConfig(a)
				case strings.HasPrefix(scheme, "redis"):
					_, err = redisConfig(a)
				}
			}
			if err != nil && (strings.Contains(err.Error(), mark) || !errors.Is(err, ErrURL)) {
				t.Errorf("%s: got %v", scheme, err)
			}
		}
	})
}

// Sentinels have a user and a password of their own, which is never in the URL.
func TestSentinelLogin(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pw")
	if err := os.WriteFile(file, []byte("s/e?c@r:e t\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := parse("redis://:p@a:26379,b:26379?sentinel=main&sentinel-user=u&sentinel-password-file=" + url.QueryEscape(file))
	if err != nil {
		t.Fatal(err)
	}
	c, err := redisConfig(a)
	if err != nil || c.Password != "p" || c.Sentinel != "main" || c.SentinelUsername != "u" || c.SentinelPassword != "s/e?c@r:e t" {
		t.Errorf("got %+v, %v", c, err)
	}
}
