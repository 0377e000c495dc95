package server

import (
	"path/filepath"
	"syscall"
)

// leastFree is the room below which a file system counts as full: four segments of WAL. PostgreSQL
// needs it all at once when it is busy.
const leastFree = 64 << 20

// Full returns which of a server's data, WAL and tablespaces lie on a file system that is full, or
// nearly so, by the path of its data. A primary whose data are on one goes on: each statement that
// needs room fails, and it ends only once its WAL needs some.
func Full(data string) []string {
	return full(data, func(path string) (free uint64, device any, err error) {
		var fs syscall.Statfs_t
		if err := syscall.Statfs(path, &fs); err != nil {
			return 0, nil, err
		}
		return fs.Bavail * uint64(fs.Bsize), fs.Fsid, nil
	})
}

// full asks for each directory how many bytes are free, and on what they are. Of several that lie
// on the same it returns the first.
func full(data string, ask func(path string) (free uint64, device any, err error)) (all []string) {
	spaces, _ := filepath.Glob(filepath.Join(data, "pg_tblspc", "*"))
	seen := map[any]bool{}
	for _, path := range append([]string{data, filepath.Join(data, "pg_wal")}, spaces...) {
		free, device, err := ask(path)
		if err != nil || seen[device] || free >= leastFree {
			continue
		}
		seen[device] = true
		if to, err := filepath.EvalSymlinks(path); err == nil {
			path = to
		}
		all = append(all, path)
	}
	return all
}
