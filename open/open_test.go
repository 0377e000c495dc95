package open

import (
	"context"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// etcdParts is Open without the network.
func etcdParts(rawURL string) (endpoints []string, user, password, prefix string, err error) {
	a, err := parse(rawURL)
	if err != nil {
		return nil, "", "", "", err
	}
	c, err := etcdConfig(a)
	return c.Endpoints, c.Username, c.Password, c.Prefix, err
}

func TestURLs(t *testing.T) {
	for _, c := range []struct {
		url, endpoints, user, password, prefix string
	}{
		{"etcd://h", "http://h:2379", "", "", ""},
		{"etcd://h:1", "http://h:1", "", "", ""},
		{"etcd://h/", "http://h:2379", "", "", ""},
		{"etcd://10.0.0.1:2379,10.0.0.2:2379,h3", "http://10.0.0.1:2379 http://10.0.0.2:2379 http://h3:2379", "", "", ""},
		{"etcd://h/team/app", "http://h:2379", "", "", "team/app/"},
		{"etcd://h/team/app//", "http://h:2379", "", "", "team/app/"},
		{"etcd://h/a%40b%20c", "http://h:2379", "", "", "a@b c/"},
		{"etcd://u:p@h", "http://h:2379", "u", "p", ""},
		{"etcd://u:p%2F%3F%40%25w@h1:1,h2:2/x", "http://h1:1 http://h2:2", "u", "p/?@%w", "x/"},
		{"etcd://u:p@w:#,;@h", "http://h:2379", "u", "p@w:#,;", ""}, // the last @ counts
		{"etcd://[::1]", "http://[::1]:2379", "", "", ""},
		{"etcd://[fe80::1]:9,h", "http://[fe80::1]:9 http://h:2379", "", "", ""},
		{"etcds://h?server-name=etcd.example", "https://h:2379", "", "", ""},
		{"etcd+unix:///run/a/etcd.sock", "unix:///run/a/etcd.sock", "", "", ""},
		{"etcd+unix:///a%40b%20c/s", "unix:///a@b%20c/s", "", "", ""},
	} {
		endpoints, user, password, prefix, err := etcdParts(c.url)
		got := []string{strings.Join(endpoints, " "), user, password, prefix}
		if want := []string{c.endpoints, c.user, c.password, c.prefix}; err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: got %q, %v; want %q", c.url, got, err, want)
		}
	}
}

func TestHeartbeatInURL(t *testing.T) {
	for rest, want := range map[string]bool{"h": false, "h?heartbeat=true": true, "h?heartbeat=1": true, "h?heartbeat=false": false} {
		a, err := parse("etcd://" + rest)
		if err != nil {
			t.Fatal(err)
		}
		c, err := etcdConfig(a)
		if err != nil || c.Heartbeat != want {
			t.Errorf("%s: Heartbeat = %v, %v; want %v", rest, c.Heartbeat, err, want)
		}
	}
}

func TestURLsThatCannotWorkSayWhy(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ url, want string }{
		{"", "no scheme"},
		{"etcd://h?heartbeat=often", "use true or false"},
		{"h:2379", "no scheme"},
		{"u:CANARY@h:2379", "no scheme"},
		{"u:CANARY://x@h:2379", "no scheme"},
		{"mysql://h", `unknown scheme "mysql": use etcd://`},
		{"embedded:", "run 'primacy dev'"},
		{"embedded:/var/lib/x", "run 'primacy dev'"},
		{"embedded:///var/lib/x", "run 'primacy dev'"},
		{"etcd+unix://", "use etcd+unix:///PATH"},
		{"etcd+unix://run/etcd.sock", "use etcd+unix:///PATH"},
		{"etcd+unix://u:CANARY@/run/etcd.sock", "use etcd+unix:///PATH"},
		{"etcd+unix:///" + strings.Repeat("x", 200), "has 201 bytes"},
		{"etcd://", "names no host"},
		{"etcd:///prefix", "names no host"},
		{"etcd://h,,h", "names no host"},
		{"etcd://:2379", "names no host"},
		{"etcd://h:", "not a port"},
		{"etcd://h:abc", "not a port"},
		{"etcd://h:0", "not a port"},
		{"etcd://h:65536", "not a port"},
		{"etcd://h:-1", "not a port"},
		{"etcd://u:CANARY", "not a port"}, // the @ was forgotten
		{"etcd://::1", "brackets"},
		{"etcd://[::1", "brackets"},
		{"etcd://[x]:1", "brackets"},
		{"etcd://a b", "not a name"},
		{"etcd://a\x00b", "not a name"},
		{"etcd://u:CANA%ZZRY@h", "two hex digits"},
		{"etcd://u:CANARY%@h", "two hex digits"},
		{"etcd://u:CANA/RY@h", "write / as %2F"},
		{"etcd://u:CANA?RY@h", "write / as %2F"},
		{"etcd://u:CANA?ca=RY@h", "write / as %2F"},
		{"etcd://u@h", "user and password go together"},
		{"etcd://:CANARY@h", "user and password go together"},
		{"etcd://u@h?password-file=" + empty, "user and password go together"},
		{"etcd://h/%", "two hex digits"},
		{"etcd://h?ca=%", "two hex digits"},
		{"etcd://h?a;b", "semicolon"},
		{"etcd://h?foo=CANARY", `unknown option "foo"`},
		{"etcd://h?ca=" + empty, "use etcds://"},
		{"etcds://h?ca=/proc/x", "/proc/x: no such file"},
		{"etcds://h?ca=" + empty, "no certificate in PEM form"},
		{"etcds://h?cert=" + empty, "cert and key go together"},
		{"etcds://h?key=" + empty, "cert and key go together"},
		{"etcds://h?cert=" + empty + "&key=" + empty, "cert and key:"},
		{"etcd://u@h?password-file=/proc/x", "password-file: open /proc/x: no such file"},
	} {
		// Through Open, which must not get as far as the network.
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		st, err := Open(ctx, c.url)
		cancel()
		if err == nil {
			st.Close()
		}
		if !errors.Is(err, ErrURL) || !strings.Contains(err.Error(), c.want) || strings.ContainsAny(err.Error(), "\n\x00") {
			t.Errorf("%q: got %v, want an ErrURL in one line with %q", c.url, err, c.want)
		}
		if err != nil && (strings.Contains(err.Error(), "CANA") || strings.Contains(err.Error(), "RY")) {
			t.Errorf("%q: a password is in the error: %v", c.url, err)
		}
	}
}

func TestThePasswordMayComeFromAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pw with @ and &")
	if err := os.WriteFile(file, []byte("s/e?c@r:e t\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, user, password, _, err := etcdParts("etcd://root@h?password-file=" + url.QueryEscape(file))
	if err != nil || user != "root" || password != "s/e?c@r:e t" {
		t.Errorf("got %q, %q, %v", user, password, err)
	}
}

// FuzzURL holds the parser to: no panic, and no part of a password in an error or an endpoint,
// however it is written.
func FuzzURL(f *testing.F) {
	for _, s := range []string{"", "p", "/", "?", "#", "@", ":", "%", "%2F", "%zz", "a/b", "a?b=c", "a?ca=b", "@/@", ",", ",x@y,", "://",
		"[::1]", "\n", "\x00", "\xff", ":1/", "p@h:1?x=", "/?@#", "?;", " ", "ü"} {
		f.Add(s, "h:2379/prefix")
	}
	f.Add("p", "h?ca=/x@y")
	f.Add("p", "[::1]:1,h?server-name=%")
	f.Fuzz(func(t *testing.T, pw, rest string) {
		const mark = "SWORDFISH"
		if strings.Contains(rest, mark) || strings.Contains(pw, mark) {
			t.Skip()
		}
		for _, scheme := range []string{"etcd://", "etcds://", ""} {
			raw := scheme + "user:" + mark + pw + mark + "@" + rest
			if scheme == "" {
				// No such URL reaches the network; Open itself must refuse it.
				if _, err := Open(expired(t), raw); err == nil || strings.Contains(err.Error(), mark) {
					t.Errorf("%q: got %v", raw, err)
				}
				continue
			}
			endpoints, user, password, prefix, err := etcdParts(raw)
			if err != nil {
				if strings.Contains(err.Error(), mark) || !errors.Is(err, ErrURL) {
					t.Errorf("%q: got %v", raw, err)
				}
				continue
			}
			if user != "user" || !strings.HasPrefix(password, mark) || strings.Contains(strings.Join(endpoints, "")+prefix, mark) {
				t.Errorf("%q: got endpoints %q, user %q, password %q, prefix %q", raw, endpoints, user, password, prefix)
			}
		}
	})
}

// expired returns a context that has ended: whoever gets as far as the network gives up at once.
func expired(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
