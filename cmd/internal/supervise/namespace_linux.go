package supervise

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// namespace is the PID namespace of one isolated command. The guardian makes it and is outside it:
//
//	guardian ──┬──▶ init      the first process of the namespace; this program again
//	           └──▶ COMMAND   a child of the guardian, and inside the namespace
//
// When init ends, the kernel kills every process of the namespace, at once and for certain. Init
// ends when the guardian does: the kernel sends it SIGKILL then (PDEATHSIG). So nothing of the
// command outlives the guardian. Orphans in the namespace become init's children, and init reaps
// them; no process can leave the namespace. When the guardian has reaped init, nothing is left.
type namespace struct {
	init   int      // init's process ID, as the guardian sees it
	toInit *os.File // a pipe to init, open until the guardian dies or abandons the namespace
}

// namespaceInitArg is the second argument of a process that is to be init, after [GuardianArg].
const namespaceInitArg = "init"

// Where init finds its ends of two pipes.
const (
	// To read. One byte says that the command has exited. The pipe's end says that the guardian is
	// dead, or has abandoned the namespace.
	initGuardianFD = 3
	// To write. Init closes it when the namespace is ready; before that it writes what is wrong.
	initReadyFD = 4
)

// newNamespace starts init and returns when the namespace is ready; after an error no init is left.
// The caller is locked to a thread that lives as long as this process (guard sees to that):
// the kernel sends PDEATHSIG when the thread ends that forked.
func newNamespace() (*namespace, error) {
	fromGuardian, toInit, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer fromGuardian.Close()
	ready, readyWrite, err := os.Pipe()
	if err != nil {
		toInit.Close()
		return nil, err
	}
	defer ready.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		toInit.Close()
		readyWrite.Close()
		return nil, err
	}
	defer null.Close()
	args := []string{"primacy", GuardianArg, namespaceInitArg}
	pid, err := syscall.ForkExec("/proc/self/exe", args, &syscall.ProcAttr{
		Dir: "/", Files: []uintptr{null.Fd(), null.Fd(), null.Fd(), fromGuardian.Fd(), readyWrite.Fd()},
		Sys: &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS, Setpgid: true, Pdeathsig: syscall.SIGKILL,
		},
	})
	readyWrite.Close()
	if err != nil {
		toInit.Close()
		return nil, err
	}
	n := &namespace{init: pid, toInit: toInit}
	if wrong, _ := io.ReadAll(ready); len(wrong) > 0 {
		n.abandon()
		return nil, errors.New(string(wrong))
	}
	return n, nil
}

// abandon ends a namespace in which no command was started.
func (n *namespace) abandon() {
	n.toInit.Close()
	_ = unix.Kill(n.init, unix.SIGKILL)
	_, _ = unix.Wait4(n.init, nil, unix.WALL, nil)
}

// endWhenEmpty makes init end as soon as it has no child left. The caller has seen that the command
// has exited: whatever the command left behind in the namespace is below init now.
func (n *namespace) endWhenEmpty() { _, _ = n.toInit.Write([]byte{1}) }

// errEnter: forkExec cannot enter the namespace. (Its other errors are about the program.)
var errEnter = errors.New("enter the PID namespace")

// forkExec starts a program in the namespace, as a child of this process. A thread enters the
// namespace for that and then ends: this process itself stays outside, and sees the process IDs
// and the /proc of its own namespace.
func (n *namespace) forkExec(path string, args []string, attr *syscall.ProcAttr) (pid int, err error) {
	// Without PDEATHSIG: the program ends with init, which has it. And with it Go's ForkExec would
	// kill the program at once. In the new process ForkExec compares getppid with its own process
	// ID, to see whether the parent has died meanwhile. Here getppid says 0, because the parent is
	// outside the namespace. (It says 0 to init too, which has PDEATHSIG. But the kernel drops a
	// SIGKILL that the first process of a namespace sends to itself.)
	attr.Sys.Pdeathsig = 0
	if attr.Dir == "" { // a thread that enters a mount namespace is moved to its root
		if attr.Dir, err = os.Getwd(); err != nil {
			return 0, fmt.Errorf("working directory: %w", err)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err = n.enter(); err != nil {
			err = fmt.Errorf("%w: %w", errEnter, err)
			return
		}
		pid, err = syscall.ForkExec(path, args, attr)
	}()
	<-done
	return pid, err
}

// enter moves the calling thread into the mount namespace of init, and its future children into the
// PID namespace. The thread gives up the capabilities that it needed for that.
func (n *namespace) enter() error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil { // a thread that shares its root may not enter
		return os.NewSyscallError("unshare", err)
	}
	root, err := unix.Open(fmt.Sprintf("/proc/%d/root", n.init), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("open init's root", err)
	}
	defer unix.Close(root)
	for _, ns := range []struct {
		name string
		flag int
	}{{"pid", unix.CLONE_NEWPID}, {"mnt", unix.CLONE_NEWNS}} {
		fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/%s", n.init, ns.name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("open namespace "+ns.name, err)
		}
		err = unix.Setns(fd, ns.flag)
		unix.Close(fd)
		if err != nil {
			return os.NewSyscallError("enter namespace "+ns.name, err)
		}
	}
	// In a chroot the root of the mount namespace is another one than ours.
	if err := errors.Join(unix.Fchdir(root), unix.Chroot(".")); err != nil {
		return os.NewSyscallError("chroot", err)
	}
	_ = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
	return nil
}

// namespaceInit is the whole life of init. It does not return.
func namespaceInit() {
	if os.Getpid() != 1 { // it would mount a /proc over the machine's own
		fmt.Fprintln(os.Stderr, "primacy: init: this is started by primacy itself, not by hand")
		os.Exit(125)
	}
	signal.Notify(make(chan os.Signal, 1)) // a stop signal for the tree must not end the namespace
	_ = os.WriteFile("/proc/self/comm", []byte("primacy-init"), 0)
	if err := mountProc(); err != nil {
		_, _ = unix.Write(initReadyFD, []byte(err.Error()))
		os.Exit(1)
	}
	unix.Close(initReadyFD)
	commandExited := make(chan struct{})
	go func() {
		var b [1]byte
		if n, _ := unix.Read(initGuardianFD, b[:]); n == 1 {
			close(commandExited)
			_, _ = unix.Read(initGuardianFD, b[:])
		}
		os.Exit(1) // the guardian is dead; if it died before PDEATHSIG was set, only this ends us
	}()
	children := make(chan os.Signal, 1) // one is enough: it says "look", not how often
	signal.Notify(children, unix.SIGCHLD)
	for exited := false; ; {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG|unix.WALL, nil)
		switch {
		case pid > 0:
			continue
		case exited && errors.Is(err, unix.ECHILD):
			os.Exit(0)
		}
		select {
		case <-children:
		case <-commandExited:
			exited, commandExited = true, nil
		}
	}
}

// mountProc mounts a /proc that shows the namespace's own processes. With the outer one a program
// such as pkill would read numbers there that mean other processes in the namespace.
func mountProc() error {
	// Only /proc is private. Where the mounts outside are shared, as systemd makes them, those of a
	// privileged command appear outside: a hook that unmounts a file system must not do so for
	// itself alone. (In a chroot "/" is no mount, and its propagation cannot be changed.)
	if err := unix.Mount("", "/proc", "", unix.MS_PRIVATE, ""); err != nil {
		return os.NewSyscallError("make /proc private", err)
	}
	err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	return os.NewSyscallError("mount /proc", err)
}

// noNamespace says why there is no namespace, and what it takes.
func noNamespace(err error) string {
	return fmt.Sprintf("no PID namespace: it needs CAP_SYS_ADMIN, or a kernel that lets ordinary users make user "+
		"namespaces (%v)", err)
}

// mayMakeNamespaces says whether this process has the capabilities that [namespace] needs.
func mayMakeNamespaces() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if unix.Capget(&header, &data[0]) != nil {
		return false
	}
	need := uint32(1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_SYS_CHROOT)
	return data[0].Effective&need == need
}

// inUserNamespace makes a process start in a user namespace, with the capabilities that [namespace]
// needs there, and with the user and group that it has outside.
func inUserNamespace(attr *syscall.SysProcAttr) {
	attr.Cloneflags = unix.CLONE_NEWUSER
	attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}}
	attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}}
	attr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SYS_CHROOT}
}
