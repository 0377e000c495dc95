// Package filereg keeps elections and locks in a directory of one machine: for the processes of one host that need no server. It is a
// [registerstore.Register] whose keys are files, and [Open] returns the store over it. Linux, macOS and the BSDs.
//
//	store, err := filereg.Open("/var/lib/jobs", registerstore.Options{})
//
// # How it keeps the contract
//
// A key is a file: a line with a random version, then the value. It lies in one of 64 folders, by a hash of its name. A write locks the folder with flock, which the
// kernel takes back when a process dies, however it dies: nothing is left behind that could hinder anybody. Under the lock it compares the version, writes a new
// file, has it put on the disk, renames it over the old one, and has the folder put on the disk. Reads take no lock, and see the old file or the new one, whole.
//
// A file becomes read-only once it is known to be on the disk. A reader who meets one that is not has the folder written first: what anybody has ever read is not
// taken back by a loss of power.
//
// # What it asks for
//
//   - A local file system. NFS, SMB and their like are refused: their clients read from caches. One in memory (tmpfs) is said to lose tokens.
//   - One user for all processes: files are readable for their owner only.
//   - Nobody moves the directory, puts an older copy back, or removes it while the store is in use. Removed folders are reported by whoever has the store open, but
//     whoever opens it next begins anew, and tokens repeat.
//   - A process that is stopped (SIGSTOP) or frozen in the middle of a write keeps its folder's lock, and with it one key of 64 from being written, until it goes on
//     or dies. Nobody can lead twice by it, and calls end with their context.
//
// The key becomes the file's name, each byte beside a-z, 0-9, "-" and "." as three ("%2F"). A name has room for 254 bytes: a [registerstore.Options] Prefix for up to 54.
package filereg
