package agent

import (
	"bufio"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// strangerOn is where TestMain finds the socket that it is to fill as another user.
const strangerOn = "PRIMACY_TEST_STRANGER_ON"

// strangerConns is how many connections the stranger opens: more than the door's limit and what it
// refuses together.
const strangerConns = 2*refusedConns + 20

// stranger opens connections, prints what the first is told, and keeps them until its stdin ends.
func stranger(path string) int {
	var first net.Conn
	for range strangerConns {
		c, err := net.Dial("unix", path)
		if err != nil {
			fmt.Println(err)
			return 1
		}
		if first == nil {
			first = c
		}
		defer c.Close()
	}
	fmt.Fprint(first, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(first), nil)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	fmt.Println(resp.StatusCode, strings.TrimSpace(string(b)), err)
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// Where others can reach the socket, a user who may not use it takes no room from those who may.
func TestAStrangerTakesNoRoomOnTheSocket(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 || runtime.GOOS != "linux" {
		t.Skip("needs root on Linux: another user must run this program")
	}
	const nobody = 65534
	s := newAgent(t, Options{UIDs: []int{4711}})
	dir := t.TempDir()
	for _, d := range []string{filepath.Dir(dir), dir} { // so that another user gets to the socket
		if err := os.Chmod(d, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	l, err := ListenUnix(filepath.Join(dir, "d", "s"), true)
	if err != nil {
		t.Fatal(err)
	}
	const most = 3
	server, _ := Secured{Conns: most}.Serve(l, s.Agent, log.New(io.Discard, "", 0))
	t.Cleanup(func() { server.Close() })
	path := l.Addr().String()

	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), strangerOn+"="+path)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { in.Close(); _ = cmd.Wait() }()
	told := bufio.NewScanner(out)
	if told.Scan(); !strings.HasPrefix(told.Text(), "403 ") ||
		!strings.Contains(told.Text(), "urn:primacy:peer-refused") ||
		!strings.Contains(told.Text(), fmt.Sprintf("user %d may not use this socket", nobody)) {
		t.Errorf("the stranger is told %q", told.Text())
	}
	// All of the owner's places are free, and his limit is what it was.
	for i := range most + 1 {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(soon))
		fmt.Fprint(c, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatalf("the owner's connection %d: %v", i, err)
		}
		defer resp.Body.Close()
		want := 200
		if i == most {
			want = 503
		}
		if resp.StatusCode != want {
			t.Errorf("the owner's connection %d of %d: %d, want %d", i+1, most, resp.StatusCode, want)
		}
	}
}

// Of strangers so many are told, the others closed, and one that left makes room.
func TestStrangersAreCountedApart(t *testing.T) {
	d := &door{most: 1, admits: func(uid int) bool { return uid == 7 }}
	come := func(uid int) (*conn, bool) {
		a, b := net.Pipe()
		t.Cleanup(func() { b.Close() })
		c := &conn{Conn: a, uid: uid, unix: true, door: d}
		return c, d.takes(c)
	}
	var first *conn
	for i := range refusedConns {
		c, ok := come(8)
		if !ok || c.refused {
			t.Fatalf("stranger %d: kept %v, refused %v", i, ok, c.refused)
		}
		if i == 0 {
			first = c
		}
	}
	over, ok := come(8)
	if ok {
		t.Error("one stranger too many is kept")
	}
	over.Close()
	if c, ok := come(7); !ok || c.refused {
		t.Errorf("the owner: kept %v, refused %v", ok, c.refused)
	}
	if c, ok := come(7); !ok || !c.refused {
		t.Errorf("the owner's second of 1: kept %v, refused %v", ok, c.refused)
	}
	first.Close()
	first.Close() // counts once
	if _, ok := come(8); !ok {
		t.Error("one that left makes no room")
	}
	if c, ok := come(8); ok {
		t.Error("two places for one that left")
	} else {
		c.Close()
	}
}
