package callbacks

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/primacy-go/primacy/cmd/internal/procfs"
)

// KeeperArg is the first argument of a keeper. The program calls [KeeperMain] then, before anything
// else.
const KeeperArg = "__callback"

// reportsFD is where the agent hears from the keeper.
const reportsFD = 3

// longestLine bounds what is told of one line that a command prints.
const longestLine = 4096

func ownSession() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// keeper is the parent of one command. Its goroutine alone kills and buries: so no number that it
// signals has become another process's.
type keeper struct {
	reports *os.File
	command int  // process ID
	ending  bool // all of it is to be killed
	told    bool // the agent knows how the command has ended
}

// KeeperMain runs the command of its arguments, and ends the process when nothing of it is left.
func KeeperMain() {
	dropInherited()
	k := &keeper{reports: os.NewFile(reportsFD, "reports")}
	term, child := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(term, unix.SIGTERM)
	signal.Notify(child, unix.SIGCHLD)
	output, err := k.start(os.Args[2:])
	if err != nil {
		k.report(failed, err.Error())
		os.Exit(1)
	}
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		k.relay(output)
	}()
	for wait := 20 * time.Millisecond; !k.bury(heard); {
		var again <-chan time.Time
		if k.ending {
			k.kill()
			again = time.After(wait) // what was started while we looked
			wait = min(2*wait, time.Second)
		}
		select {
		case <-term:
			// One that has ended meanwhile is not ended, nor what it has left. What is being ended
			// is ended to its last process: a newer callback waits for that.
			k.ending = k.ending || !k.told
		case <-child:
		case <-again:
		}
	}
	settle(heard)
	os.Exit(0)
}

// dropInherited closes what the agent has inherited itself: somebody may wait until it is closed,
// or it may be a lock. What this process has opened is closed when the command is executed; so are
// the reports, which must end with this process.
func dropInherited() {
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd < reportsFD {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		switch {
		case fd == reportsFD:
			unix.CloseOnExec(fd)
		case err == nil && flags&unix.FD_CLOEXEC == 0:
			_ = unix.Close(fd)
		}
	}
}

// start starts the command, and returns what it prints.
func (k *keeper) start(args []string) (*os.File, error) {
	// What the command has left falls to this process.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	k.command = cmd.Process.Pid
	return r, nil
}

// report tells the agent. An agent that has ended is told nothing.
func (k *keeper) report(kind byte, text string) {
	text = strings.NewReplacer("\n", " ", "\r", " ").Replace(text)
	_, _ = k.reports.WriteString(string(kind) + text + "\n")
}

// relay tells what the command prints. It reads on when the agent has ended: else the command would
// die of what it prints.
func (k *keeper) relay(output *os.File) {
	lines := bufio.NewReaderSize(output, longestLine)
	for {
		text, err := lines.ReadSlice('\n')
		if text = bytes.TrimRight(text, "\r\n"); len(text) > 0 {
			k.report(said, strings.ToValidUTF8(string(text), "?"))
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

// bury buries who has died, and says whether nobody is left. It tells how the command has ended.
func (k *keeper) bury(heard <-chan struct{}) (alone bool) {
	for {
		var how unix.WaitStatus
		pid, err := unix.Wait4(-1, &how, unix.WNOHANG, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return true
		case pid == 0:
			return false
		case pid != k.command || k.told:
			continue
		}
		k.told = true
		settle(heard)
		if k.ending {
			k.report(killed, "")
			continue
		}
		k.report(exited, describe(how))
	}
}

// settle waits a moment until all that was printed is told. What is left in the background may hold
// the output open for ever.
func settle(heard <-chan struct{}) {
	select {
	case <-heard:
	case <-time.After(50 * time.Millisecond):
	}
}

func describe(how unix.WaitStatus) string {
	switch {
	case how.Signaled():
		return "it was killed: " + how.Signal().String()
	case how.ExitStatus() != 0:
		return fmt.Sprintf("exit status %d", how.ExitStatus())
	}
	return ""
}

// kill kills all children. Their children become ours, and are killed next.
func (k *keeper) kill() {
	for _, p := range procfs.All() {
		if p.Parent == os.Getpid() {
			_ = unix.Kill(p.PID, unix.SIGKILL)
		}
	}
}
