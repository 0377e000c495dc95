// Package procfs reads what Linux tells of its processes in /proc. It needs no lock and keeps
// nothing: what it returns may be over by then.
package procfs

import (
	"bytes"
	"os"
	"strconv"
)

// Process is a process at the time it was looked at.
type Process struct {
	PID, Parent int
	State       byte   // as in proc(5): 'T' is stopped, 'Z' is dead and not yet reaped
	Start       string // in clock ticks after boot: PID and Start together name one process, for all time
}

// Dead says whether the process has ended. Its parent may not have reaped it yet.
func (p Process) Dead() bool { return p.State == 'Z' || p.State == 'X' }

// Look returns the process of that number, false if there is none.
func Look(pid int) (Process, bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return Process{}, false
	}
	// The name in parentheses may hold any byte, also spaces and parentheses: count from the last
	// one.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) < 20 {
		return Process{}, false
	}
	parent, err := strconv.Atoi(string(fields[1]))
	return Process{PID: pid, Parent: parent, State: fields[0][0], Start: string(fields[19])}, err == nil
}

// All returns every process of the machine, also those that are dead and not yet reaped. It may
// miss one that starts meanwhile.
func All() (all []Process) {
	for _, pid := range PIDs() {
		if p, ok := Look(pid); ok {
			all = append(all, p)
		}
	}
	return all
}

// PIDs returns the number of every process of the machine.
func PIDs() (all []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			all = append(all, pid)
		}
	}
	return all
}
