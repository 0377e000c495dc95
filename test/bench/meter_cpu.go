package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// What processes take of the CPU, as Linux counts it: the servers by their process, with all that
// it started, and ours.

// tick is how long one of /proc's is: a hundredth of a second on every Linux.
const tick = 10 * time.Millisecond

// cpu returns a meter of what the servers and this process take, in seconds.
func (e *Env) cpu() (meter, error) {
	var pids []int
	for _, addr := range e.servers.addrs {
		pid, err := listener(addr)
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	return func() (reading, error) {
		server, err := cpuOf(pids...)
		if err != nil {
			return nil, err
		}
		client := ownCPU()
		if len(helpers) > 0 {
			others, err := cpuOf(helpers...)
			if err != nil {
				return nil, err
			}
			client += others
		}
		return reading{"server": server.Seconds(), "client": client.Seconds()}, nil
	}, nil
}

// helpers are processes that belong to the clients.
var helpers []int

// listener returns the process that listens on host:port.
func listener(addr string) (int, error) {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return 0, err
	}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(table)
		if err != nil {
			continue
		}
		if inode := listening(string(text), n); inode != "" {
			return holderOf("socket:[" + inode + "]")
		}
	}
	return 0, fmt.Errorf("nobody listens on %s", addr)
}

// listening finds the socket that listens on a port in the kernel's table.
func listening(table string, port int) string {
	const listen = "0A"
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) > 9 && f[3] == listen && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
			return f[9]
		}
	}
	return ""
}

// holderOf returns the first process that has the file open: of one that was handed on to children,
// its parent.
func holderOf(file string) (int, error) {
	all, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	best := 0
	for _, fd := range all {
		if to, err := os.Readlink(fd); err != nil || to != file {
			continue
		}
		pid, err := strconv.Atoi(strings.Split(fd, "/")[2])
		if err == nil && (best == 0 || pid < best) {
			best = pid
		}
	}
	if best == 0 {
		return 0, fmt.Errorf("no process has %s open: it belongs to another user", file)
	}
	return best, nil
}

// cpuOf returns what processes have taken so far with all their children, those that have ended
// too.
func cpuOf(pids ...int) (time.Duration, error) {
	parents, taken := map[int]int{}, map[int]time.Duration{}
	all, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	for _, file := range all {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		pid, parent, cpu, err := parseStat(text)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", file, err)
		}
		parents[pid], taken[pid] = parent, cpu
	}
	sum := time.Duration(0)
	for pid, cpu := range taken {
		for p := pid; p > 1; p = parents[p] {
			if slices.Contains(pids, p) {
				sum += cpu
				break
			}
		}
	}
	return sum, nil
}

// parseStat reads a process's stat: its parent, and what it and its children that have ended have
// taken.
func parseStat(text []byte) (pid, parent int, cpu time.Duration, err error) {
	if _, err := fmt.Sscanf(string(text), "%d (", &pid); err != nil {
		return 0, 0, 0, err
	}
	f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // the name may have anything in it
	if len(f) < 15 {
		return 0, 0, 0, fmt.Errorf("%q is too short", text)
	}
	parent, err = strconv.Atoi(f[1])
	for _, field := range f[11:15] {
		n, bad := strconv.ParseInt(field, 10, 64)
		if bad != nil {
			err = bad
		}
		cpu += time.Duration(n) * tick
	}
	return pid, parent, cpu, err
}

// ownCPU returns what this process has taken.
func ownCPU() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
