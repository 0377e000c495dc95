package embedded

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// busyLimit is how long the files of a host that was killed may stay locked after its lock is free:
// the kernel closes the files of a dying process one by one.
const busyLimit = 3 * time.Second

// checkData looks at the data before etcd opens it for writing. Most of what is wrong with a file
// makes etcd panic in a goroutine of its own, where nobody can catch it and the user is left with a
// stack trace; or worse, it starts and waits for ever, or begins at revision 1 again, and old
// tokens come back.
func checkData(ctx context.Context, data string) error {
	logDir := filepath.Join(data, "member", "wal")
	logs, err := filepath.Glob(filepath.Join(logDir, "*.wal"))
	if err != nil {
		return err
	}
	for _, path := range logs {
		if err := awaitUnlocked(ctx, path); err != nil {
			return err
		}
	}
	db := filepath.Join(data, "member", "snap", "db")
	if info, err := os.Stat(db); errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		return nil // new
	}
	var applied, logged uint64
	err = caught(func() error { return readThrough(db, &applied) })
	if errors.Is(err, bolterrors.ErrTimeout) {
		return inUse(db)
	}
	if err != nil {
		return damaged(data, db, err)
	}
	if err := caught(func() error { return readLog(logDir, &logged) }); err != nil {
		return damaged(data, logDir, err)
	}
	if logged < applied {
		return damaged(data, logDir, fmt.Errorf("it ends at entry %d, and the data has already taken up entry %d",
			logged, applied))
	}
	return nil
}

// damaged says what is, and what to do.
func damaged(data, what string, err error) error {
	return fmt.Errorf("%s is damaged: %w; nothing was changed: put %s back from a backup, or move it away to "+
		"begin anew "+
		"(tokens then start afresh)", what, err, data)
}

// caught runs f, whose panics and bad memory become errors.
func caught(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // data cut short under the memory map
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	return f()
}

func inUse(path string) error {
	return fmt.Errorf("%s is in use by another process: end that one, or choose another directory", path)
}

// awaitUnlocked returns once nobody has the file of etcd's log open: neither a host that is dying,
// nor a child of ours that was forked while we had it open and has not come to its exec.
func awaitUnlocked(ctx context.Context, path string) error {
	limit := time.NewTimer(busyLimit)
	defer limit.Stop()
	for {
		err := tryUnlocked(path)
		if err == nil || errors.Is(err, fs.ErrNotExist) { // purged by the dying host
			return nil
		}
		if !errors.Is(err, fileutil.ErrLocked) {
			return err
		}
		select {
		case <-limit.C:
			return inUse(path)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// tryUnlocked takes the lock and lets go of it, which it does by closing the file. A fork in
// between would keep the lock.
func tryUnlocked(path string) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	f, err := fileutil.TryLockFile(path, os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// readThrough reads every key of the data file, and the index of the last log entry that is in it.
// bbolt panics on what it cannot make sense of.
func readThrough(path string, applied *uint64) error {
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, Timeout: busyLimit})
	if err != nil {
		return err
	}
	defer db.Close()
	tx, err := db.Begin(false)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	info, err := os.Stat(path) // under bbolt's lock: an etcd that was just ending may have grown it
	if err != nil {
		return err
	}
	if size := info.Size(); tx.Size() > size {
		return fmt.Errorf("it has %d bytes and should have %d", size, tx.Size())
	}
	if meta := tx.Bucket([]byte("meta")); meta != nil {
		if index := meta.Get([]byte("consistent_index")); len(index) == 8 {
			*applied = binary.BigEndian.Uint64(index)
		}
	}
	return tx.ForEach(func(_ []byte, b *bolt.Bucket) error { return readBucket(b) })
}

// readLog reads etcd's log from its last snapshot on, and the index of its last entry.
func readLog(dir string, last *uint64) error {
	lg := zap.NewNop().WithOptions(zap.WithFatalHook(zapcore.WriteThenPanic))
	if !wal.Exist(dir) {
		return errors.New("the log is missing")
	}
	snaps, err := wal.ValidSnapshotEntries(lg, dir)
	if err != nil {
		return err
	}
	if len(snaps) == 0 {
		return errors.New("the log has no beginning")
	}
	from := snaps[len(snaps)-1]
	log, err := wal.OpenForRead(lg, dir, from)
	if err != nil {
		return err
	}
	defer log.Close()
	_, _, entries, err := log.ReadAll()
	*last = from.GetIndex()
	if len(entries) > 0 {
		*last = entries[len(entries)-1].GetIndex()
	}
	return err
}

func readBucket(b *bolt.Bucket) error {
	var sum byte
	err := b.ForEach(func(k, v []byte) error {
		if v == nil {
			return readBucket(b.Bucket(k))
		}
		for _, part := range [][]byte{k, v} {
			if len(part) > 0 {
				sum ^= part[0] ^ part[len(part)-1] // touch the pages
			}
		}
		return nil
	})
	_ = sum
	return err
}
