package etcdstore_test

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/etcdstore"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

// holderEnv has this test binary be a process that leads until it is killed: "ENDPOINTS TTL".
const holderEnv = "PRIMACY_TEST_HOLDER"

// TestHolderProcess is that process, and no test.
func TestHolderProcess(t *testing.T) {
	how := strings.Fields(os.Getenv(holderEnv))
	if len(how) != 2 {
		t.Skip("only run by TestCrashIsTakenOver")
	}
	ttl, err := time.ParseDuration(how[1])
	if err != nil {
		t.Fatal(err)
	}
	s := sessionAt(t, strings.Split(how[0], ","), ttl, false)
	if _, err := s.Election("x").Campaign(context.Background(), nil); err != nil {
		t.Fatal(err)
	}
	fmt.Println("leading")
	select {}
}

// sessionAt returns a session on a store of its own. It is not closed.
func sessionAt(t *testing.T, endpoints []string, ttl time.Duration, heartbeat bool) *primacy.Session {
	t.Helper()
	st, err := etcdstore.Open(soon(t), etcdstore.Config{Endpoints: endpoints,
		Options: etcdstore.Options{Heartbeat: heartbeat}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	s, err := primacy.NewSession(st, &primacy.Options{TTL: ttl, Overrun: primacy.OverrunWait})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestCrashIsTakenOver kills a process that leads with a ttl of 300 ms, again and again, and
// tells how long it took until the next one led.
//
// HEARTBEAT_ROUNDS is how often (default 2), HEARTBEAT_TTL the ttl, HEARTBEAT_MEMBERS the size of
// the cluster (default 1).
func TestCrashIsTakenOver(t *testing.T) {
	rounds, members := envInt(t, "HEARTBEAT_ROUNDS", 2), envInt(t, "HEARTBEAT_MEMBERS", 1)
	ttl := cmp.Or(os.Getenv("HEARTBEAT_TTL"), "300ms")
	c := etcdtest.StartCluster(t, members, etcdtest.Options{})
	next := sessionAt(t, c.Endpoints(), 10*time.Second, false)
	var took []time.Duration
	for lost := 0; len(took) < rounds; {
		kill := holder(t, c.Endpoints(), ttl)
		won := make(chan error, 1)
		var term *primacy.Term
		go func() {
			var err error
			term, err = next.Election("x").Campaign(within(t, time.Minute), nil)
			won <- err
		}()
		time.Sleep(1500*time.Millisecond + time.Duration(len(took)*37%60)*time.Millisecond)
		early := len(won) > 0
		begun := time.Now()
		kill()
		if err := <-won; err != nil {
			t.Fatal(err)
		}
		if !early {
			took = append(took, time.Since(begun))
		} else if lost++; lost > rounds+5 { // a ttl this short is lost now and then where others use the machine
			t.Fatal("the holder loses its term again and again")
		}
		if err := term.Resign(soon(t)); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(took)
	t.Logf("%d members, ttl %s, %d crashes: min %v, median %v, max %v", members, ttl, rounds,
		took[0].Round(time.Millisecond),
		took[len(took)/2].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond))
}

// holder starts a process that leads, and returns what kills it.
func holder(t *testing.T, endpoints []string, ttl string) (kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run", "^TestHolderProcess$")
	cmd.Env = append(os.Environ(), holderEnv+"="+strings.Join(endpoints, ",")+" "+ttl)
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = func() { _ = cmd.Process.Kill(); _, _ = cmd.Process.Wait() }
	t.Cleanup(kill)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if lines.Text() == "leading" {
			return kill
		}
	}
	t.Fatal("the holder never led")
	return nil
}

func envInt(t *testing.T, key string, or int) int {
	s := os.Getenv(key)
	if s == "" {
		return or
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("%s: %v", key, err)
	}
	return n
}
