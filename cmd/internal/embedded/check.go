package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
)

// busyLimit is how long the files of a host that was killed may stay locked after its lock is free: the kernel closes the
// files of a dying process one by one.
const busyLimit = 3 * time.Second

// checkData looks at the data before etcd opens it for writing. Most of what is wrong with a file makes etcd panic in a
// goroutine of its own, where nobody can catch it and the user is left with a stack trace.
func checkData(ctx context.Context, data string) error {
	logs, err := filepath.Glob(filepath.Join(data, "member", "wal", "*.wal"))
	if err != nil {
		return err
	}
	for _, path := range logs {
		if err := awaitUnlocked(ctx, path); err != nil {
			return err
		}
	}
	db := filepath.Join(data, "member", "snap", "db")
	info, err := os.Stat(db)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		return nil // new, or killed before the first write
	}
	if err != nil {
		return err
	}
	if err := readThrough(db, info.Size()); err != nil {
		if errors.Is(err, bolt.ErrTimeout) {
			return inUse(db)
		}
		return fmt.Errorf("%s is damaged: %w; nothing was changed: put it back from a backup, or move %s away to begin "+
			"anew (tokens then start afresh)", db, err, data)
	}
	return nil
}

func inUse(path string) error {
	return fmt.Errorf("%s is in use by another process: end that one, or choose another directory", path)
}

// awaitUnlocked returns once nobody has the file of etcd's log open.
func awaitUnlocked(ctx context.Context, path string) error {
	limit := time.NewTimer(busyLimit)
	defer limit.Stop()
	for {
		f, err := fileutil.TryLockFile(path, os.O_RDWR, 0o600)
		if err == nil {
			return f.Close()
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // purged by the dying host
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

// readThrough reads every key of the data file. bbolt panics on what it cannot make sense of.
func readThrough(path string, size int64) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
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
	if tx.Size() > size {
		return fmt.Errorf("it has %d bytes and should have %d", size, tx.Size())
	}
	return tx.ForEach(func(_ []byte, b *bolt.Bucket) error { return readBucket(b) })
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
