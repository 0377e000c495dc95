package agent

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/primacy-go/primacy/metrics"
)

// The figures of all clients are shown, and what those did who have gone.
func TestFiguresOfClients(t *testing.T) {
	t.Parallel()
	s := newAgent(t, Options{Metrics: metrics.Options{ClientGo: true}})
	page := func() string { return s.want(200, "", s.ask("GET", "/metrics", "")).text }
	for i := range 3 {
		one := s.campaign("n", ``)
		one.until("elected")
		for _, text := range []string{`primacy_is_leader{election="n"} 1`,
			`leader_election_master_status{name="n"} 1`, "go_goroutines ", "process_open_fds ",
			"primacy_build_info{"} {
			if p := page(); !strings.Contains(p, text) {
				t.Fatalf("%s is not in %s", text, p)
			}
		}
		one.conn.Close()
		want := `primacy_transitions_total{election="n",reason="resigned",to="follower"} ` + itoa(i+1)
		eventually(t, "the end is counted", func() bool { return strings.Contains(page(), want) })
		if strings.Contains(page(), `primacy_is_leader{election="n"} 1`) {
			t.Fatal("somebody leads still")
		}
	}
}

func TestMain(m *testing.M) {
	if path := os.Getenv(strangerOn); path != "" {
		os.Exit(stranger(path))
	}
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == fmt.Sprint(runtime.GOMAXPROCS(0)) {
		_ = f.Value.Set("12") // they mostly wait
	}
	os.Exit(m.Run())
}
