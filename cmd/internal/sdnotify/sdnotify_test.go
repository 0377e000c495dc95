//go:build unix

package sdnotify

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// manager is the other end: a real socket.
func manager(t *testing.T, name string) *net.UnixConn {
	t.Helper()
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	t.Setenv("NOTIFY_SOCKET", name)
	return c
}

func read(t *testing.T, c *net.UnixConn) string {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	buf := make([]byte, 4096)
	n, err := c.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return string(buf[:n])
}

func TestTell(t *testing.T) {
	for _, name := range []string{filepath.Join(t.TempDir(), "notify"), fmt.Sprintf("@primacy-test-%d", os.Getpid())} {
		c := manager(t, name)
		n, err := New()
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Tell(Ready, Status("leader of a\nb\r, token 5\x00"),
			ExtendTimeout(1500*time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		// A name or an ID with a line break must not make an assignment of its own.
		if got, want := read(t, c),
			"READY=1\nSTATUS=leader of a b , token 5\nEXTEND_TIMEOUT_USEC=1500000"; got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

func TestNobodyToTell(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	n, err := New()
	if n != nil || err != nil || n.Tell(Ready) != nil {
		t.Errorf("got %v, %v", n, err)
	}
	for _, name := range []string{"vsock:2:1234", "relative", filepath.Join(t.TempDir(), "nosuch")} {
		t.Setenv("NOTIFY_SOCKET", name)
		if n, err := New(); n != nil || err == nil || !strings.Contains(err.Error(), "NOTIFY_SOCKET") {
			t.Errorf("%s: got %v, %v", name, n, err)
		}
	}
}

// A manager that does not read must not hold up a stop.
func TestAManagerThatDoesNotRead(t *testing.T) {
	manager(t, filepath.Join(t.TempDir(), "notify"))
	n, err := New()
	if err != nil {
		t.Fatal(err)
	}
	for range 10000 {
		began := time.Now()
		err := n.Tell(Watchdog)
		if took := time.Since(began); took > 5*time.Second {
			t.Fatalf("it took %v", took)
		}
		if err != nil {
			return // full, and told
		}
	}
	t.Fatal("the socket never filled")
}

func TestWatchdogEvery(t *testing.T) {
	self := fmt.Sprint(os.Getpid())
	for _, c := range []struct {
		usec, pid string
		want      time.Duration
		bad       bool
	}{
		{"", "", 0, false}, {"", self, 0, false}, {"3000000", "", 3 * time.Second, false},
		{"3000000", self, 3 * time.Second, false},
		{"3000000", "1", 0, false}, {"x", self, 0, true}, {"0", self, 0, true}, {"-1", self, 0, true},
		{"9223372036854775807", self, 0, true},
	} {
		t.Setenv("WATCHDOG_USEC", c.usec)
		t.Setenv("WATCHDOG_PID", c.pid)
		if got, err := WatchdogEvery(); got != c.want || (err != nil) != c.bad {
			t.Errorf("%+v: got %v, %v", c, got, err)
		}
	}
}

const inside = "TEST_TAKES_SOCKETS"

func TestMain(m *testing.M) {
	if os.Getenv(inside) == "" {
		os.Exit(m.Run())
	}
	if os.Getenv("LISTEN_PID") == "self" {
		_ = os.Setenv("LISTEN_PID", fmt.Sprint(os.Getpid()))
	}
	sockets, err := Listeners()
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	fmt.Printf("%d %q\n", len(sockets), os.Getenv("LISTEN_FDS"))
	for _, s := range sockets {
		c, err := s.Accept()
		if err != nil {
			panic(err)
		}
		fmt.Fprintf(c, "%s\n", s.Name)
		c.Close()
		s.Close()
	}
}

// TestListeners passes real sockets to a real process, as a service manager does.
func TestListeners(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	u, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	uf, _ := u.(*net.UnixListener).File()
	tf, _ := tcp.(*net.TCPListener).File()
	out, clean := child(t, []*os.File{uf, tf}, "self", "2", "api:")
	if got := dial(t, "unix", path); got != "api\n" {
		t.Errorf("the first socket is %q", got)
	}
	if got := dial(t, "tcp", tcp.Addr().String()); got != "unknown\n" {
		t.Errorf("the second socket is %q", got)
	}
	if err := clean(); err != nil || out.String() != "2 \"\"\n" {
		t.Errorf("got %q, %v", out, err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the manager's path is gone: %v", err)
	}
}

func TestListenersOfSomebodyElse(t *testing.T) {
	for _, c := range []struct{ pid, count, want string }{
		{"1", "1", "0 \"1\"\n"}, // our caller's: left as they are
		{"self", "", "0 \"\"\n"}, {"self", "0", "0 \"\"\n"}, {"self", "x",
			"error: LISTEN_FDS=\"x\" is not a number of sockets\n"},
		{"self", "-1", "error: LISTEN_FDS=\"-1\" is not a number of sockets\n"},
	} {
		out, wait := child(t, nil, c.pid, c.count, "")
		_ = wait()
		if out.String() != c.want {
			t.Errorf("%+v: got %q", c, out)
		}
	}
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	out, wait := child(t, []*os.File{f}, "self", "1", "")
	if err := wait(); err == nil || !strings.Contains(out.String(),
		"descriptor 3 (unknown) from the service manager is no listening socket") {
		t.Errorf("got %q, %v", out, err)
	}
}

func child(t *testing.T, files []*os.File, pid, count, names string) (*strings.Builder, func() error) {
	t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(slices.Clone(os.Environ()), inside+"=1", "LISTEN_PID="+pid, "LISTEN_FDS="+count,
		"LISTEN_FDNAMES="+names, "GORACE=atexit_sleep_ms=0")
	c.ExtraFiles = files
	out := &strings.Builder{}
	c.Stdout = out
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		f.Close()
	}
	return out, c.Wait
}

func dial(t *testing.T, network, addr string) string {
	t.Helper()
	c, err := net.Dial(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	buf := make([]byte, 100)
	n, _ := c.Read(buf)
	return string(buf[:n])
}
