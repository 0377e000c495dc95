package filereg

import "golang.org/x/sys/unix"

var networks = map[int64]string{
	unix.NFS_SUPER_MAGIC: "NFS", unix.SMB_SUPER_MAGIC: "SMB", unix.CIFS_SUPER_MAGIC: "CIFS", unix.SMB2_SUPER_MAGIC: "SMB",
	unix.CEPH_SUPER_MAGIC: "Ceph", unix.AFS_SUPER_MAGIC: "AFS", unix.AFS_FS_MAGIC: "AFS", unix.CODA_SUPER_MAGIC: "Coda",
}

func kindOf(dir string) (kind, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return kind{}, err
	}
	magic := int64(s.Type) & 0xffffffff // a signed int32 on some architectures
	if name := networks[magic]; name != "" {
		return kind{}, shared(name)
	}
	switch magic {
	case unix.TMPFS_MAGIC, unix.RAMFS_MAGIC:
		return kind{"the directory lies in memory: a reboot forgets tokens", true}, nil
	case unix.OVERLAYFS_SUPER_MAGIC:
		return kind{"the directory lies in the layer of a container: other containers do not see it, and with this one its tokens go", true}, nil
	case unix.FUSE_SUPER_MAGIC, unix.V9FS_MAGIC:
		return kind{warning: "the directory lies on a FUSE or 9p file system: only if no other machine shares it, and locks and syncs reach it, can one alone lead"}, nil
	}
	return kind{}, nil
}
