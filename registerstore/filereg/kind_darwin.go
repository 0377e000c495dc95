package filereg

import "golang.org/x/sys/unix"

func kindOf(dir string) (kind, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return kind{}, err
	}
	if s.Flags&unix.MNT_LOCAL == 0 {
		return kind{}, shared(unix.ByteSliceToString(s.Fstypename[:]))
	}
	return kind{}, nil
}
