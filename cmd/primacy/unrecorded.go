package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// A term that ends while the store does not answer leaves its record in a file, since the process
// that led ends with it. The next 'primacy run' of this user on this host that reaches the store
// appends it there.

// unrecorded is such a file.
type unrecorded struct {
	Journal string `json:"journal"`
	Key     string `json:"key"`
	Value   string `json:"value"`
}

// What bounds the files.
const (
	unrecordedPrefix = "unrecorded-"
	maxUnrecorded    = 1000
	unrecordedLimit  = 2 * time.Second // for writing all of them into the store
)

// unrecordedFiles is the pattern of the names of the files for this runner's store. The store's URL
// may hold a password, so its hash is in the names.
func unrecordedFiles(r *runner) (dir, prefix string, err error) {
	if dir, err = runtimeDir(); err != nil {
		return "", "", err
	}
	store := r.store
	if store == "" || strings.HasPrefix(store, embeddedScheme) {
		at, err := r.embeddedDir()
		if err != nil {
			return "", "", err
		}
		store = embeddedScheme + at
	}
	sum := sha256.Sum256([]byte(store))
	return dir, unrecordedPrefix + hex.EncodeToString(sum[:8]) + "-", nil
}

// keepUnrecorded keeps what the closed session could not write. Without it the history says that no
// end was recorded.
func keepUnrecorded(r *runner) {
	if r.session == nil {
		return
	}
	dir, prefix, err := unrecordedFiles(r)
	if err != nil {
		return
	}
	for journal, rec := range r.session.Unrecorded() {
		b, err := json.Marshal(unrecorded{journal, rec.Key, string(rec.Value)})
		if err != nil {
			return
		}
		path := filepath.Join(dir, prefix+rand.Text())
		if os.WriteFile(path+".new", b, 0o600) != nil || os.Rename(path+".new", path+".json") != nil {
			_ = os.Remove(path + ".new")
			return
		}
	}
}

// recordUnrecorded appends what earlier processes of this user on this host could not write.
func recordUnrecorded(ctx context.Context, r *runner) {
	j, ok := r.at.(driver.Journal)
	dir, prefix, err := unrecordedFiles(r)
	if !ok || err != nil {
		return
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, unrecordedLimit)
	defer cancel()
	n := 0
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), prefix) || !strings.HasSuffix(e.Name(), ".json") || n >= maxUnrecorded {
			continue
		}
		n++
		path := filepath.Join(dir, e.Name())
		var u unrecorded
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		if json.Unmarshal(b, &u) == nil && strings.HasPrefix(u.Journal, termJournals) {
			// It is safe to repeat: a record that is there already stays as it is.
			_, _, err = j.Append(ctx, u.Journal, driver.Record{Key: u.Key, Value: []byte(u.Value)}, math.MaxInt32)
			if err != nil && !driver.IsFinal(err) {
				return // the next one tries again
			}
		}
		_ = os.Remove(path)
	}
}
