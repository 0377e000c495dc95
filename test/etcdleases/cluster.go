//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// member is one server of the cluster, with a client that talks to no other.
type member struct {
	name   string
	client *clientv3.Client
	id     uint64
	cmd    *exec.Cmd
	proxy  *proxy // before its port for the other members
	url    string
	exited chan struct{}
}

func (m *member) String() string { return m.name }

// freeze stops the process: its connections stay open, and nothing is answered.
func (m *member) freeze() { _ = m.cmd.Process.Signal(syscall.SIGSTOP) }
func (m *member) thaw()   { _ = m.cmd.Process.Signal(syscall.SIGCONT) }

// cluster is three servers in a temporary folder.
type cluster struct {
	dir     string
	members []*member
	proxies []*proxy
}

// server returns the path of an etcd server: the one asked for, or of that version, built once and
// kept in the user's cache.
func server(ctx context.Context, etcd string, out io.Writer) (string, error) {
	if strings.ContainsRune(etcd, filepath.Separator) {
		return etcd, nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "primacy-test")
	path := filepath.Join(dir, "etcd-"+etcd)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(dir, "build-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	fmt.Fprintf(out, "building etcd %s from the Go module proxy, once\n", etcd)
	const module = "go.etcd.io/etcd/server/v3"
	mod := "module build\n\ngo 1.26\n\nrequire " + module + " v" + etcd + "\n"
	tools := "//go:build tools\n\npackage build\n\nimport _ \"" + module + "\"\n"
	err = errors.Join(os.WriteFile(filepath.Join(tmp, "go.mod"), []byte(mod), 0o644),
		os.WriteFile(filepath.Join(tmp, "tools.go"), []byte(tools), 0o644))
	if err != nil {
		return "", err
	}
	for _, args := range [][]string{{"get", module + "@v" + etcd}, {"build", "-trimpath", "-o", "etcd", module}} {
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Dir, cmd.Env = tmp, append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod", "CGO_ENABLED=0")
		if text, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, text)
		}
	}
	return path, os.Rename(filepath.Join(tmp, "etcd"), path)
}

// versionOf returns what a server says that it is: "etcd 3.7.3".
func versionOf(ctx context.Context, binary string) (string, error) {
	text, err := exec.CommandContext(ctx, binary, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", binary, err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return strings.Replace(line, " Version: ", " ", 1), nil
}

// start runs three members, and returns when all know a leader.
func start(ctx context.Context, binary string, extra []string) (*cluster, error) {
	var last error
	for range 3 { // between the choice of a port and its use another process may take it
		c, err := startOnce(ctx, binary, extra)
		if err == nil {
			return c, nil
		}
		c.stop()
		if last = err; ctx.Err() != nil {
			break
		}
	}
	return nil, last
}

func startOnce(ctx context.Context, binary string, extra []string) (*cluster, error) {
	dir, err := os.MkdirTemp("", "etcdleases-")
	c := &cluster{dir: dir}
	if err != nil {
		return c, err
	}
	addrs, err := freeAddrs(6)
	if err != nil {
		return c, err
	}
	var initial []string
	names := []string{"A", "B", "C"}
	for i, name := range names {
		p, err := newProxy(addrs[2*i+1])
		if err != nil {
			return c, err
		}
		c.proxies = append(c.proxies, p)
		initial = append(initial, name+"=http://"+p.listener.Addr().String())
	}
	for i, name := range names {
		m := &member{name: name, url: "http://" + addrs[2*i], exited: make(chan struct{}), proxy: c.proxies[i]}
		peer := "http://" + m.proxy.listener.Addr().String()
		log, err := os.Create(filepath.Join(dir, name+".log"))
		if err != nil {
			return c, err
		}
		m.cmd = exec.Command(binary, append([]string{
			"--name", name, "--data-dir", filepath.Join(dir, name), "--log-level", "warn", "--log-outputs", "stderr",
			"--listen-client-urls", m.url, "--advertise-client-urls", m.url,
			"--listen-peer-urls", "http://" + addrs[2*i+1], "--initial-advertise-peer-urls", peer,
			"--initial-cluster", strings.Join(initial, ","), "--initial-cluster-token", dir,
		}, extra...)...)
		m.cmd.Stdout, m.cmd.Stderr = log, log
		err = m.cmd.Start()
		log.Close()
		if err != nil {
			return c, err
		}
		c.members = append(c.members, m)
		go func() {
			_ = m.cmd.Wait()
			close(m.exited)
		}()
	}
	return c, c.ready(ctx)
}

// ready connects to each member and waits until it knows a leader.
func (c *cluster) ready(ctx context.Context) error {
	for _, m := range c.members {
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{m.url}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
		if err != nil {
			return err
		}
		m.client = client
		for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			lead, err := m.leader(ctx)
			if err == nil && lead != 0 {
				break
			}
			select {
			case <-m.exited:
				text, _ := os.ReadFile(filepath.Join(c.dir, m.name+".log"))
				return fmt.Errorf("etcd ended at once:\n%s", text)
			default:
			}
			if ctx.Err() != nil || time.Now().After(end) {
				return fmt.Errorf("%s does not serve: %w", m, err)
			}
		}
	}
	return nil
}

// leader asks a member who leads.
func (m *member) leader(ctx context.Context) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	st, err := m.client.Status(ctx, m.url)
	if err != nil {
		return 0, err
	}
	m.id = st.Header.MemberId
	return st.Leader, nil
}

// leader returns the member that leads as all those in asked say, or all members if none are named;
// nil if they do not agree before ctx ends.
func (c *cluster) leader(ctx context.Context, asked ...*member) *member {
	if len(asked) == 0 {
		asked = c.members
	}
	for ; ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		lead, agree := uint64(0), true
		for i, m := range asked {
			id, err := m.leader(ctx)
			if err != nil || id == 0 || i > 0 && id != lead {
				agree = false
				break
			}
			lead = id
		}
		for _, m := range asked {
			if agree && m.id == lead {
				return m
			}
		}
	}
	return nil
}

// others returns the members but m.
func (c *cluster) others(m *member) (all []*member) {
	for _, o := range c.members {
		if o != m {
			all = append(all, o)
		}
	}
	return all
}

// stop kills what was started and removes the folder.
func (c *cluster) stop() {
	for _, m := range c.members {
		_ = m.cmd.Process.Kill() // which a frozen process obeys too
		<-m.exited
		if m.client != nil {
			_ = m.client.Close()
		}
	}
	for _, p := range c.proxies {
		p.listener.Close()
		p.heal()
	}
	_ = os.RemoveAll(c.dir)
}

// freeAddrs returns loopback addresses that nobody listens on.
func freeAddrs(n int) (addrs []string, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		addrs = append(addrs, l.Addr().String())
	}
	return addrs, nil
}
