//go:build linux

package page

import (
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/primacy-go/primacy/internal/programtest"
)

// The token goes from the address bar each time that the dashboard's address is opened; a tab
// learns that its browser has logged out; and the cookie, which a browser sends to each port of
// the host, lets no other user of the machine in.
func TestALoginInABrowser(t *testing.T) {
	w := newStore(t)
	w.stand(w.session("web-1"), "", "billing")
	_, out := w.start("dashboard")
	if !out.Scan() {
		t.Fatal("the dashboard prints no address")
	}
	at := out.Text()
	page, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	page.Path, page.Fragment = "/ui/", ""
	b := newTab(t, look{width: 1280})
	for range 2 { // the second time it is logged in
		b.run(chromedp.Navigate("about:blank"), chromedp.Navigate(at))
		b.until("#rows", "billing")
		if got := js[string](b, `location.href`); got != page.String() {
			t.Errorf("the address is %s, want %s", got, page)
		}
	}

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	sent := make(chan string, 10)
	other := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c := r.Header.Get("Cookie"); c != "" {
			sent <- c
		}
		_, _ = io.WriteString(w, "another server")
	})}
	go other.Serve(l)
	t.Cleanup(func() { other.Close() })
	thief := newTab(t, look{width: 1280})
	thief.run(chromedp.Navigate(at))
	thief.until("#rows", "billing")
	thief.run(chromedp.Navigate("http://" + l.Addr().String() + "/ui/"))
	var cookie string
	select {
	case cookie = <-sent:
	default: // browsers may have become wiser
	}
	thief.forgive()
	asks := func(as *syscall.SysProcAttr) string {
		t.Helper()
		curl := exec.Command("curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "-H", "Cookie: "+cookie,
			page.String())
		curl.Dir, curl.SysProcAttr = "/", as
		got, err := curl.CombinedOutput()
		if err != nil {
			t.Fatalf("curl: %v: %s", err, got)
		}
		return strings.TrimSpace(string(got))
	}
	if cookie != "" && os.Getuid() == 0 {
		programtest.Needs(t, "curl")
		const nobody = 65534
		if got := asks(nil); got != "200" {
			t.Errorf("the user who logged in is answered %s with the cookie", got)
		}
		if got := asks(&syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}); got != "303" {
			t.Errorf("another user is answered %s with the cookie", got)
		}
	}

	b.until("#live", "live")
	js[bool](b, `(fetch('/ui/logout', {method: 'POST'}), true)`) // the answer may come after the tab has gone
	b.until("h1", "Log in")
	if cookie != "" && os.Getuid() == 0 && asks(nil) != "200" {
		t.Error("another login has ended with it")
	}
}
