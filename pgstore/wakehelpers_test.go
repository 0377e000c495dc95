package pgstore_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/pgtest"
	"github.com/primacy-go/primacy/pgstore"
)

// waking is the configuration of a store with the option.
func waking(url string) pgstore.Config { return pgstore.Config{DSN: url, AdvisoryWake: true} }

// TestHolderProcess is the process that others kill: it holds a name under a lease that it renews.
func TestHolderProcess(t *testing.T) {
	url, name := os.Getenv("PGSTORE_HOLD_URL"), os.Getenv("PGSTORE_HOLD_NAME")
	if url == "" {
		t.Skip("started by other tests")
	}
	ttl, err := time.ParseDuration(os.Getenv("PGSTORE_HOLD_TTL"))
	if err != nil {
		t.Fatal(err)
	}
	s := opened(t, waking(url))
	pgstore.SlowWake(s)
	l := granted(t, s, ttl)
	p := entered(t, l, name)
	fmt.Printf("\nholds %d %s\n", p.Token, l.ID())
	for {
		time.Sleep(ttl / 10)
		if err := l.Renew(context.Background()); errors.Is(err, driver.ErrGone) {
			fmt.Printf("\ngone\n")
			return
		}
	}
}

// holder is such a process.
type holder struct {
	cmd   *exec.Cmd
	token uint64
	lease string
	gone  chan struct{} // closed when it says that its lease has ended, or has died
}

func held(t *testing.T, url, name string, ttl time.Duration) *holder {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestHolderProcess$", "-test.v")
	cmd.Env = append(os.Environ(), "PGSTORE_HOLD_URL="+url, "PGSTORE_HOLD_NAME="+name, "PGSTORE_HOLD_TTL="+ttl.String())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	h := &holder{cmd: cmd, gone: make(chan struct{})}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-h.gone
		_ = cmd.Wait()
	})
	said := make(chan string, 1)
	go func() {
		defer close(h.gone)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if text, ok := strings.CutPrefix(lines.Text(), "holds "); ok {
				said <- text
			} else if lines.Text() == "gone" {
				return
			}
		}
	}()
	select {
	case text := <-said:
		token, lease, _ := strings.Cut(text, " ")
		h.lease = lease
		if h.token, err = strconv.ParseUint(token, 10, 64); err != nil {
			t.Fatal(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the process does not hold")
	}
	return h
}

// armed waits until a lease is tied to two sessions and somebody waits for one of them.
func armed(t *testing.T, srv *pgtest.Server, lease string, watched bool) {
	t.Helper()
	eventually(t, "the lease tied twice", func() bool {
		return srv.Query("SELECT count(*) FROM primacy.tethers WHERE boot = pg_postmaster_start_time() AND lease = '"+lease+"'") == "2"
	})
	if watched {
		eventually(t, "somebody waits for the session's end", func() bool {
			return srv.Query("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted") != "0"
		})
	}
}

// ends has the server end the sessions that hold the locks of a lease, or one of them.
func ends(srv *pgtest.Server, lease string, limit int) string {
	return srv.Query(fmt.Sprintf(`SELECT count(pg_terminate_backend(pid)) FROM (SELECT DISTINCT l.pid FROM pg_locks l JOIN primacy.tethers t
		ON l.locktype = 'advisory' AND l.granted AND l.mode = 'ExclusiveLock' AND (l.classid::bigint << 32) + l.objid::bigint = t.key WHERE t.lease = '%s' LIMIT %d) u`, lease, limit))
}

// shutdown ends a server as its administrator does.
func shutdown(t *testing.T, srv *pgtest.Server) {
	t.Helper()
	first, _, _ := strings.Cut(srv.Query("SELECT pg_read_file('postmaster.pid')"), "\n")
	pid, err := strconv.Atoi(first)
	if err == nil {
		err = syscall.Kill(pid, syscall.SIGINT)
	}
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond)
	_ = srv.Ready(300 * time.Millisecond)
}

// still fails the test if a Wait returns within the time.
func still(t *testing.T, what string, done <-chan outcome, during time.Duration) {
	t.Helper()
	select {
	case got := <-done:
		t.Errorf("%s: taken over: %+v, %v", what, got.place, got.err)
	case <-time.After(during):
	}
}
