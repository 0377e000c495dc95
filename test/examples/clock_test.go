//go:build linux

package examples

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/programtest"
)

// mounted returns how to start a program that sees another file in place of one of /proc.
func mounted(t *testing.T, file, over string, args []string) []string {
	t.Helper()
	script := `mount --bind "$0" "$1"; shift; exec "$@"`
	all := append([]string{"unshare", "-r", "-m", "sh", "-ec", script, file, over}, args...)
	if out, err := exec.Command(all[0], append(all[1:8:8], "true")...).CombinedOutput(); err != nil {
		t.Skipf("NOT TESTED: nothing can be mounted here: %v %s", err, out)
	}
	return all
}

// uptimeOfAContainer returns a file that shows what /proc/uptime does under lxcfs in a container
// that has just started.
func uptimeOfAContainer(t *testing.T) string {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "uptime"))
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	write := func() {
		_, _ = f.WriteAt(fmt.Appendf(nil, "%.2f 1.00\n", time.Since(began).Seconds()), 0)
	}
	write()
	done, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		for tick := time.NewTicker(5 * time.Millisecond); ; <-tick.C {
			select {
			case <-done:
				return
			default:
				write()
			}
		}
	}()
	t.Cleanup(func() { close(done); <-over; f.Close() })
	return f.Name()
}

// In a container whose /proc/uptime counts from its own start, a leader works, and no longer than
// until the deadline by the clock of the machine.
func TestALeaderInAContainerWithAnUptimeOfItsOwnStopsInTime(t *testing.T) {
	t.Parallel()
	for lang, args := range languages {
		t.Run(lang, func(t *testing.T) {
			programtest.Needs(t, "curl", "unshare", args("")[0])
			t.Parallel()
			serve, env := sidecar(t)
			p := start(t, t, env, mounted(t, uptimeOfAContainer(t), "/proc/uptime", args("clock"))...)
			p.leads()
			serve.signal(syscall.SIGSTOP)
			p.ends(122)
		})
	}
}

// A deadline on the clock of another machine, as through a socket that is forwarded, is none.
func TestADeadlineOfAnotherMachineIsNone(t *testing.T) {
	t.Parallel()
	other := filepath.Join(t.TempDir(), "boot_id")
	if err := os.WriteFile(other, []byte("0e5b6c5e-0000-4000-8000-000000000000\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, env := sidecar(t)
	for lang, args := range languages {
		t.Run(lang, func(t *testing.T) {
			programtest.Needs(t, "curl", "unshare", args("")[0])
			p := start(t, t, env, mounted(t, other, "/proc/sys/kernel/random/boot_id", args("far/"+lang))...)
			p.ends(122)
			text := p.text()
			if strings.Contains(text, "works") || !strings.Contains(text, "the sidecar's clock is not") {
				t.Errorf("it said:\n%s", text)
			}
		})
	}
}
