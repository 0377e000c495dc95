package agent

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/primacy-go/primacy/internal/programtest"
)

// The kernel says which user of this machine calls a port of it.
func TestTheCallerOfAPort(t *testing.T) {
	t.Parallel()
	who := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, strconv.Itoa(Caller(r)))
	})
	serve := func(l net.Listener, err error) string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		server, _ := Secured{}.Serve(l, who, log.New(io.Discard, "", 0))
		t.Cleanup(func() { server.Close() })
		return l.Addr().String()
	}
	all := serve(net.Listen("tcp", "[::]:0")) // connections of IPv4 come as mapped ones
	_, port, _ := net.SplitHostPort(all)
	four := serve(net.Listen("tcp", "127.0.0.1:0"))
	for _, addr := range []string{four, "127.0.0.1:" + port, "[::1]:" + port} {
		resp, err := http.Get("http://" + addr)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if string(text) != strconv.Itoa(os.Getuid()) {
			t.Errorf("%s is called by user %s, want %d", addr, text, os.Getuid())
		}
	}
	if os.Getuid() != 0 {
		t.Skip("the rest needs root: another user must call")
	}
	programtest.Needs(t, "curl")
	const nobody = 65534
	for _, addr := range []string{four, "127.0.0.1:" + port} {
		curl := exec.Command("curl", "-sS", "http://"+addr)
		curl.Dir = "/"
		curl.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		if out, err := curl.CombinedOutput(); strings.TrimSpace(string(out)) != strconv.Itoa(nobody) {
			t.Errorf("%s is called by user %s (%v), want %d", addr, out, err, nobody)
		}
	}
}

// An end that its process has closed is nobody's: the kernel shows it as one of root.
func TestAnEndThatIsClosedIsNobodys(t *testing.T) {
	t.Parallel()
	local, remote := netip.MustParseAddrPort("127.0.0.1:4000"), netip.MustParseAddrPort("127.0.0.1:80")
	list := filepath.Join(t.TempDir(), "tcp")
	for inode, held := range map[string]bool{"1234": true, "0": false} {
		text := fmt.Sprintf("  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  "+
			"timeout inode\n"+
			"   0: %s %s 05 00000000:00000000 00:00000000 00000000     0        0 %s 1 0\n", procAddr(local, false),
			procAddr(remote, false), inode)
		if err := os.WriteFile(list, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if uid, ok := userIn(list, local, remote); ok != held {
			t.Errorf("with inode %s: user %d, known: %v", inode, uid, ok)
		}
		if _, ok := userIn(list, remote, local); ok {
			t.Error("the addresses are looked up the wrong way round")
		}
	}
}

// A child that is being started has all that is open here open too, until it executes its program.
// It does not keep the lock of a socket that was closed.
func TestAChildThatIsBeingStartedKeepsNoSocket(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "d", "s")
	one, err := ListenUnix(path, false)
	if err != nil {
		t.Fatal(err)
	}
	fds, _ := filepath.Glob("/proc/self/fd/*")
	child := -1
	for _, fd := range fds {
		if to, _ := os.Readlink(fd); to == path+".lock" {
			n, _ := strconv.Atoi(filepath.Base(fd))
			if child, err = syscall.Dup(n); err != nil {
				t.Fatal(err)
			}
		}
	}
	if child == -1 {
		t.Fatal("the lock is not open")
	}
	defer syscall.Close(child)
	one.Close()
	two, err := ListenUnix(path, false)
	if err != nil {
		t.Fatal(err)
	}
	two.Close()
}
