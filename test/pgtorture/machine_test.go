//go:build linux

package pgtorture

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/onethread"
	"github.com/primacy-go/primacy/internal/servertest"
)

// machine is one of the cluster: a member of etcd, an agent and its PostgreSQL, all in one network
// namespace and one cgroup, where these can be had.
type machine struct {
	name  string
	dir   string
	host  string
	port  string // of PostgreSQL
	etcd  *etcdtest.Server
	disk  *disk    // that dir is; nil: it is a folder as any other
	group string   // the folder of its cgroup; "": there is none
	line  []string // starts the agent
	links []*etcdtest.Proxy

	mu     sync.Mutex
	cmd    *exec.Cmd
	exited chan struct{}
	killed bool // the agent's end is the harness's doing
	begun  time.Time
	frozen []proc
}

// proc is a process of a machine.
type proc struct {
	pid     int
	command string
}

func (m *machine) data() string { return filepath.Join(m.dir, "data") }

// file is the agent's.
func (m *machine) file() string { return filepath.Join(m.dir, "pg.toml") }

// restartAfter is how long a service manager waits between two starts.
const restartAfter = 500 * time.Millisecond

// start starts the agent, if it does not run and was not started a moment ago.
func (m *machine) start() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.runsLocked() || time.Since(m.begun) < restartAfter {
		return nil
	}
	m.begun = time.Now()
	log, err := os.OpenFile(m.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(m.line[0], m.line[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = m.dir, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if m.group != "" {
		dir, err := os.Open(m.group)
		if err != nil {
			return err
		}
		defer dir.Close()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(dir.Fd())
	}
	onethread.Do(func() { err = cmd.Start() })
	if err != nil {
		return err
	}
	exited := make(chan struct{})
	go func() { _ = cmd.Wait(); close(exited) }()
	m.cmd, m.exited, m.killed = cmd, exited, false
	return nil
}

func (m *machine) logFile() string { return m.dir + ".log" }

func (m *machine) runsLocked() bool {
	if m.cmd == nil {
		return false
	}
	select {
	case <-m.exited:
		return false
	default:
		return true
	}
}

func (m *machine) runs() bool { m.mu.Lock(); defer m.mu.Unlock(); return m.runsLocked() }

// agent returns the process of the agent, 0 if it does not run.
func (m *machine) agent() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.runsLocked() {
		return 0
	}
	return m.cmd.Process.Pid
}

// expectEnd says that the agent's end, which is to come, is wanted.
func (m *machine) expectEnd() { m.mu.Lock(); defer m.mu.Unlock(); m.killed = true }

// unexpected says how the agent ended if nobody had ended it.
func (m *machine) unexpected() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cmd == nil || m.runsLocked() || m.killed {
		return ""
	}
	m.killed = true
	return fmt.Sprintf("the agent of %s ended by itself: %v", m.name, m.cmd.ProcessState)
}

// terminate ends the agent as a service manager does, and returns when nothing of it is left.
func (m *machine) terminate(limit time.Duration) error {
	pid := m.agent()
	if pid == 0 {
		return nil
	}
	m.expectEnd()
	_ = syscall.Kill(pid, syscall.SIGTERM)
	select {
	case <-m.exited:
	case <-time.After(limit):
		return fmt.Errorf("the agent of %s does not end %v after SIGTERM", m.name, limit)
	}
	if code := m.cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("the agent of %s ended on SIGTERM with %v", m.name, m.cmd.ProcessState)
	}
	return nil
}

// procs returns all processes of the machine but etcd.
func (m *machine) procs() (all []proc) {
	var pids []int
	if m.group != "" {
		text, _ := os.ReadFile(filepath.Join(m.group, "cgroup.procs"))
		for _, f := range strings.Fields(string(text)) {
			pid, _ := strconv.Atoi(f)
			pids = append(pids, pid)
		}
	} else {
		pids = m.within()
	}
	for _, pid := range pids {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil || len(line) == 0 {
			continue // it is dead
		}
		command := strings.TrimSpace(string(bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
		if pid != m.etcd.PID() {
			all = append(all, proc{pid, command})
		}
	}
	return all
}

// within returns the processes whose working directory is the machine's folder or below it, and
// what the agent has started.
func (m *machine) within() (all []int) {
	agent := m.agent()
	links, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range links {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(link)))
		at, err := os.Readlink(link)
		if err == nil && (at == m.dir || strings.HasPrefix(at, m.dir+"/")) || agent != 0 && parentOf(pid) == agent {
			all = append(all, pid)
		}
	}
	return all
}

// parentOf returns the parent of a process, 0 if there is no such process.
func parentOf(pid int) int {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	f := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]) // the name may hold spaces
	parent, _ := strconv.Atoi(string(f[1]))
	return parent
}

// Roles of processes.
const (
	agent      = "agent"
	guardian   = "guardian"
	postmaster = "postmaster"
)

// roles returns the processes of a role: one of the three above, or what a process of PostgreSQL
// calls itself, such as "walsender".
func (m *machine) roles(role string) (found []proc) {
	pid := m.agent()
	all := m.procs()
	for _, p := range all {
		is := false
		switch role {
		case agent:
			is = p.pid == pid
		case guardian:
			is = strings.Contains(p.command, "__guardian")
		case postmaster:
			is = strings.Contains(p.command, "/postgres -D ")
		default:
			is = strings.HasPrefix(p.command, "postgres: ") && strings.Contains(p.command, role)
		}
		if is {
			found = append(found, p)
		}
	}
	return found
}

// backends returns the processes that serve clients of the database.
func (m *machine) backends() []proc {
	return slices.DeleteFunc(m.roles("postgres postgres "), func(p proc) bool {
		return strings.Contains(p.command, "walsender") || strings.Contains(p.command, "[local]")
	})
}

var errMissed = errors.New("there is nothing of that kind to hit")

// kill sends SIGKILL to all processes of these roles at once.
func (m *machine) kill(roles ...string) error {
	var victims []proc
	for _, role := range roles {
		found := m.roles(role)
		if len(found) == 0 {
			return fmt.Errorf("%s of %s: %w", role, m.name, errMissed)
		}
		victims = append(victims, found...)
	}
	if slices.Contains(roles, agent) {
		m.expectEnd()
	}
	for _, p := range victims {
		_ = syscall.Kill(p.pid, syscall.SIGKILL)
	}
	return nil
}

// freeze stops processes until thaw.
func (m *machine) freeze(victims ...proc) error {
	if len(victims) == 0 {
		return errMissed
	}
	m.frozen = append(m.frozen, victims...)
	for _, p := range victims {
		if err := servertest.Halt(p.pid); err != nil {
			return fmt.Errorf("%w: %w", errMissed, err)
		}
	}
	return nil
}

// freezeAll stops the whole machine.
func (m *machine) freezeAll() error {
	if m.group == "" {
		m.etcd.Stop()
		return m.freeze(m.procs()...)
	}
	return m.write("cgroup.freeze", "1")
}

// thaw lets everything go on.
func (m *machine) thaw() {
	m.disk.resume()
	if m.group != "" {
		_ = m.write("cgroup.freeze", "0")
	}
	for _, p := range slices.Backward(m.frozen) {
		_ = syscall.Kill(p.pid, syscall.SIGCONT)
	}
	m.frozen = nil
	m.etcd.Cont()
}

func (m *machine) write(file, text string) error {
	return os.WriteFile(filepath.Join(m.group, file), []byte(text), 0)
}

// off ends everything of the machine at once, and returns when nothing is left. Nothing of it runs
// while the rest is killed.
func (m *machine) off() error {
	m.expectEnd()
	if m.group != "" { // not cgroup.kill: Linux 6.18 kills whoever is started in the group later, too
		_ = m.write("cgroup.freeze", "1")
	}
	for _, p := range m.procs() {
		_ = syscall.Kill(p.pid, syscall.SIGKILL)
	}
	m.etcd.Kill()
	if m.group != "" {
		_ = m.write("cgroup.freeze", "0")
	}
	return m.clear()
}

// clear kills what is left of the agent and its server.
func (m *machine) clear() error {
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		left := m.procs()
		if len(left) == 0 && !m.runs() {
			return nil
		}
		for _, p := range left {
			_ = syscall.Kill(p.pid, syscall.SIGKILL)
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s does not go off: %v", m.name, left)
		}
	}
}

// on starts everything of the machine.
func (m *machine) on() error {
	if m.etcd.Exited() {
		if err := m.etcd.Launch(); err != nil {
			return err
		}
		if err := m.join(m.etcd.PID()); err != nil {
			return err
		}
	}
	return m.start()
}

// join moves a process into the machine's cgroup.
func (m *machine) join(pid int) error {
	if m.group == "" {
		return nil
	}
	return m.write("cgroup.procs", strconv.Itoa(pid))
}

// tail returns the end of the agent's log.
func (m *machine) tail(lines int) string {
	b, _ := os.ReadFile(m.logFile())
	all := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
