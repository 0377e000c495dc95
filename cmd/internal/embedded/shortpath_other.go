//go:build !linux

package embedded

import (
	"fmt"
	"os"
	"path/filepath"
)

// longest is what fits into sockaddr_un on the BSDs, whose 104 bytes end with a zero.
const longest = 103

// shortPath refuses a directory in which the path of a socket would be too long for the kernel.
func shortPath(dir, socket string) (string, *os.File, error) {
	if len(filepath.Join(dir, socket)) > longest {
		return "", nil, fmt.Errorf("the path is too long for a socket (at most %d bytes): choose a shorter one",
			longest-len(socket)-1)
	}
	return dir, nil, nil
}
