package agent

import (
	"bufio"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/internal/boottime"
)

// A proxy that dies closes the connection for a client that works on: it has the time that it was
// told.
func TestAProxyThatDiesDoesNotStopItsClients(t *testing.T) {
	t.Parallel()
	s := newAgent(t, Options{Session: primacy.Options{TTL: 4 * time.Second}})
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "localhost"})
	proxy.Transport, proxy.FlushInterval = s.client.Transport, -1
	server := httptest.NewServer(proxy)
	defer server.Close()
	r, err := http.Post(server.URL+"/v1/elections/n/campaign", "application/json", strings.NewReader(`{"id":"one"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	var elected string
	for in := bufio.NewScanner(r.Body); !strings.Contains(elected, `"elected"`) && in.Scan(); {
		elected = in.Text()
	}
	var told int64
	_, digits, _ := strings.Cut(elected, `"deadline_boot_ns":"`)
	if _, err := fmt.Sscan(strings.SplitN(digits, `"`, 2)[0], &told); err != nil {
		t.Fatal(err, elected)
	}
	two := s.campaign("n", `{"id":"two"}`)
	two.until("waiting")
	server.CloseClientConnections() // the proxy sees a client that has gone, and closes its own connection
	two.until("elected")
	if early := time.Duration(told) - boottime.Now(); early > 0 {
		t.Errorf("two leads %v before the time that one was told is over", early)
	}
}
