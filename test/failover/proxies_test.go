//go:build linux

package failover

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/onethread"
	"github.com/primacy-go/primacy/internal/programtest"
	"github.com/primacy-go/primacy/internal/servertest"
)

// example is one of deploy/: its file, and how its proxy is run by a user without rights, in the
// foreground.
type example struct {
	program string
	file    string
	command func(config, dir string) []string
	change  func(text string) string // once its addresses are ours; nil: nothing
}

var examples = map[string]example{
	"haproxy": {program: "haproxy", file: "haproxy/haproxy.cfg",
		command: func(config, _ string) []string { return []string{"haproxy", "-db", "-f", config} }},
	"caddy": {program: "caddy", file: "caddy/Caddyfile", command: func(config, _ string) []string {
		return []string{"caddy", "run", "--adapter", "caddyfile", "--config", config}
	}},
	"nginx": {program: "nginx", file: "nginx/nginx.conf", command: func(config, dir string) []string {
		own := fmt.Sprintf("daemon off; pid %[1]s/pid; error_log stderr;", dir) // all else is the example's
		return []string{"nginx", "-c", config, "-p", dir, "-g", own}
	}},
}

// start runs the proxy of an example with other addresses in it: of the nodes, in order, and of the
// proxy itself.
func (e example) start(t testing.TB, nodes [][2]string, at string, wrap func([]string) []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../deploy", e.file))
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "proxy")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	config := e.substitute(t, string(text), nodes, at, dir)
	if e.change != nil {
		config = e.change(config)
	}
	path := filepath.Join(dir, filepath.Base(e.file))
	for _, err := range []error{os.Chmod(dir, 0o777), os.WriteFile(path, []byte(config), 0o644)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	args := e.command(path, dir)
	if os.Getuid() == 0 {
		args = append([]string{"setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"}, args...)
	}
	args = wrap(args)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = dir // haproxy wants to go back to where it was: that may be root's own folder
	cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	onethread.Do(func() { err = cmd.Start() })
	if err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() { _ = cmd.Wait(); close(exited) }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-exited:
		case <-time.After(30 * time.Second):
			_ = cmd.Process.Kill()
			<-exited
		}
		if text, _ := os.ReadFile(log.Name()); t.Failed() {
			t.Logf("the proxy said:\n%s", text)
		}
	})
	if !within(time.Minute, func() bool {
		c, err := net.DialTimeout("tcp", at, time.Second)
		if err == nil {
			c.Close()
		}
		return err == nil
	}) {
		said, _ := os.ReadFile(log.Name())
		t.Fatalf("%v does not serve:\n%s", args, said)
	}
}

// substitute puts other addresses into an example. Where the nodes are one machine, each needs a
// port of its own for its checks.
func (e example) substitute(t testing.TB, text string, nodes [][2]string, at, dir string) string {
	t.Helper()
	replace := func(old, by string) {
		if !strings.Contains(text, old) {
			t.Fatalf("%s has no %q", e.file, old)
		}
		text = strings.ReplaceAll(text, old, by)
	}
	_, common, _ := net.SplitHostPort(nodes[0][1])
	for i, n := range nodes {
		by := n[0]
		if _, port, _ := net.SplitHostPort(n[1]); e.program == "haproxy" && port != common {
			by += " port " + port
		}
		replace(fmt.Sprintf("10.0.0.%d:8000", i+1), by)
	}
	switch e.program {
	case "haproxy":
		replace("bind :8080", "bind "+at)
		replace("check port 8001", "check port "+common)
	case "caddy":
		replace("http://:8080", "http://"+at)
		replace("health_port 8001", "health_port "+common)
	case "nginx":
		replace("listen 8080", "listen "+at)
		own := "http {\n    access_log off;\n"
		for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
			// a user without rights has no /var/lib/nginx
			own += fmt.Sprintf("    %s_temp_path %s/%s;\n", kind, dir, kind)
		}
		replace("http {\n", own)
	}
	return text
}

func alone(cmd []string) []string { return cmd }

// TestProxies has each proxy find the leader, and the next one when it is killed. The nodes are
// three addresses of loopback.
func TestProxies(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t, etcdtest.Options{})
	var nodes []*node
	var at [][2]string
	port, checks := servertest.FreePort(t), servertest.FreePort(t)
	for i := range 3 {
		host := fmt.Sprintf("127.0.0.%d", 11+i)
		at = append(at, [2]string{host + ":" + port, host + ":" + checks})
		nodes = append(nodes, newNode(t, fmt.Sprintf("node%d", i), "etcd://"+etcd.Addr(), at[i][0], at[i][1],
			3*time.Second, alone))
	}
	users := map[string]*clients{}
	for name, e := range examples {
		if _, err := exec.LookPath(e.program); err != nil && os.Getenv("CI") != "true" {
			t.Logf("%v: left out", err)
			continue
		}
		programtest.Needs(t, e.program)
		own := "127.0.0.1:" + servertest.FreePort(t)
		e.start(t, at, own, alone)
		c := hammer(own, 1)
		t.Cleanup(func() { c.end() })
		users[name] = c
	}
	if len(users) == 0 {
		t.Skip("no proxy is installed")
	}
	for round := range 2 {
		var lead seen
		var supervisor, service int
		eventually(t, time.Minute, "a leader that runs", func() (runs bool) { // a busy machine may end its term
			for name, c := range users {
				eventually(t, time.Minute, "a leader behind "+name,
					func() bool { l, ok := c.leader(); lead = l; return ok })
			}
			time.Sleep(500 * time.Millisecond) // each has seen it
			supervisor, _, service, runs = nodes[lead.ID[4]-'0'].parts()
			return runs
		})
		send(syscall.SIGKILL, []int{supervisor, service}[round])
		for name, c := range users {
			if !within(time.Minute, func() bool { l, ok := c.leader(); return ok && l.Token > lead.Token }) {
				t.Errorf("%s does not find the leader after token %d; failures: %v", name, lead.Token, c.failures())
			}
		}
	}
	for name, c := range users {
		all := c.end()
		v := judge(all)
		t.Logf("%s: %d answers, gaps %v, without an answer: %v", name, len(all), v.gaps, c.failures())
		for _, wrong := range v.wrong() {
			t.Errorf("%s: %s", name, wrong)
		}
	}
}
