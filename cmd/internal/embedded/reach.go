package embedded

import (
	"fmt"
	"path/filepath"
)

// Reach returns where the store in directory path answers while some process hosts it, for an etcd
// client of a process that will never host it itself; done is to be called when that is closed. It
// looks at nothing and changes nothing.
func Reach(path string) (endpoint string, done func(), err error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", nil, fmt.Errorf("embedded store %s: %w", path, err)
	}
	d := &dir{name: abs}
	if d.at, d.file, err = shortPath(abs, socketName); err != nil {
		return "", nil, fmt.Errorf("embedded store %s: %w", abs, err)
	}
	return d.endpoint(), d.close, nil
}
