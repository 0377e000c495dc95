package etcdtest_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/etcdtest"
)

// The servers are what they say they are. It runs before all other tests, so that building them
// (minutes, on a fresh machine) does not take the processor from tests of time.
func TestTheServersAreBuilt(t *testing.T) {
	for _, version := range etcdtest.Versions() {
		out, err := exec.Command(etcdtest.Binary(t, version), "--version").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "etcd Version: "+version) {
			t.Errorf("etcd %s says: %s, %v", version, out, err)
		}
	}
	if out, err := exec.Command(etcdtest.Etcdctl(t), "version").CombinedOutput(); err != nil ||
		!strings.Contains(string(out), "etcdctl version: ") {
		t.Errorf("etcdctl says: %s, %v", out, err)
	}
}

// A member whose clocks run fast or slow says so itself: it ends a lease by that much earlier or
// later. Building it takes minutes, so that is asked for.
func TestTheClockOfAServerRunsAtItsRate(t *testing.T) {
	if os.Getenv("TORTURE_RATE") == "" {
		t.Skip("builds etcd anew, for minutes: TORTURE_RATE=5 asks for it")
	}
	for _, percent := range []int{20, -20} {
		s := etcdtest.Start(t, etcdtest.Options{ClockRate: func(int) int { return percent }})
		begin := time.Now()
		if err := s.Post("/v3/lease/grant", map[string]string{"ID": "77", "TTL": "10"}, nil); err != nil {
			t.Fatal(err)
		}
		var left struct {
			TTL string `json:"TTL"`
		}
		for left.TTL != "-1" {
			if err := s.Post("/v3/lease/timetolive", map[string]string{"ID": "77"}, &left); err != nil {
				t.Fatal(err)
			}
			time.Sleep(20 * time.Millisecond)
		}
		took := time.Since(begin).Seconds()
		if want := 10 / (1 + float64(percent)/100); took < want-0.3 || took > want+1.2 {
			t.Errorf("at %+d %% a lease of 10 s lived for %.2f s, want %.2f and up to a second more", percent, took,
				want)
		}
	}
}
