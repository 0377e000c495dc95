package embedded

import (
	"fmt"
	"os"
	"path/filepath"
)

// longest is what fits into sockaddr_un, whose 108 bytes end with a zero.
const longest = 107

// shortPath is how to name dir so that the path of a socket in it is not too long for the kernel:
// as it is, or through an open descriptor, which the caller closes when no socket is dialled any
// more.
func shortPath(dir, socket string) (string, *os.File, error) {
	if len(filepath.Join(dir, socket)) <= longest {
		return dir, nil, nil
	}
	f, err := os.Open(dir)
	if err != nil {
		return "", nil, err
	}
	at := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
	if _, err := os.Stat(at); err != nil {
		f.Close()
		return "", nil, fmt.Errorf("the path is too long for a socket (at most %d bytes) and /proc is not mounted: "+
			"choose a shorter one", longest-len(socket)-1)
	}
	return at, f, nil
}
