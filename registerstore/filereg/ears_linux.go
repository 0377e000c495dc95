package filereg

import (
	"bytes"
	"encoding/binary"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// ears hear of changes by inotify, one instance for all keys: a user has 128.
type ears struct {
	fd   int
	file *os.File

	mu    sync.Mutex
	dead  bool
	bells map[place]*bell
}

type place struct {
	folder int32 // inotify's number for it
	name   string
}

// bell is rung once, for all who listen at a place.
type bell struct {
	rung      chan struct{}
	listeners int
}

func newEars() (*ears, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK) // nonblocking: so that Close ends the read
	if err != nil {
		return nil, err
	}
	e := &ears{fd: fd, file: os.NewFile(uintptr(fd), "inotify"), bells: map[place]*bell{}}
	go e.hear()
	return e, nil
}

// listen returns a channel that is closed at the next change of a file. Done must be called.
func (e *ears) listen(folder, name string) (<-chan struct{}, func(), error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.dead {
		return nil, nil, os.ErrClosed
	}
	n, err := unix.InotifyAddWatch(e.fd, folder, unix.IN_MOVED_TO|unix.IN_DELETE|unix.IN_ONLYDIR) // the same number each time
	if err != nil {
		return nil, nil, err
	}
	at := place{int32(n), name}
	b := e.bells[at]
	if b == nil {
		b = &bell{rung: make(chan struct{})}
		e.bells[at] = b
	}
	b.listeners++
	return b.rung, func() { e.leave(at, b) }, nil
}

func (e *ears) leave(at place, b *bell) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if b.listeners--; b.listeners == 0 && e.bells[at] == b {
		delete(e.bells, at)
	}
}

func (e *ears) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.dead {
		e.dead = true // before the descriptor goes: its number may soon be another file's
		e.ring(func(place) bool { return true })
		e.file.Close()
	}
}

func (e *ears) hear() {
	defer e.close()
	buf := make([]byte, 64<<10)
	for {
		n, err := e.file.Read(buf)
		if err != nil {
			return
		}
		e.mu.Lock()
		for rest := buf[:n]; len(rest) >= unix.SizeofInotifyEvent; {
			rest = e.event(rest)
		}
		e.mu.Unlock()
	}
}

// event takes the first event, rings for it, and returns what follows.
func (e *ears) event(b []byte) (rest []byte) {
	folder := int32(binary.NativeEndian.Uint32(b))
	mask := binary.NativeEndian.Uint32(b[4:])
	end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
	name, _, _ := bytes.Cut(b[unix.SizeofInotifyEvent:end], []byte{0})
	switch {
	case mask&unix.IN_Q_OVERFLOW != 0: // events were lost: all must look
		e.ring(func(place) bool { return true })
	case mask&unix.IN_IGNORED != 0: // the folder is gone
		e.ring(func(p place) bool { return p.folder == folder })
	default:
		at := place{folder, string(name)}
		if e.bells[at] != nil {
			close(e.bells[at].rung)
			delete(e.bells, at)
		}
	}
	return b[end:]
}

func (e *ears) ring(which func(place) bool) {
	for at, b := range e.bells {
		if which(at) {
			close(b.rung)
			delete(e.bells, at)
		}
	}
}
