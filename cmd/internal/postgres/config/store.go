package config

import (
	"context"
	"errors"
	"fmt"
	"regexp"
)

// Namespace is Patroni's own.
const Namespace = "/service/"

var slashes = regexp.MustCompile(`/+`)

// Dir returns the directory of a cluster's keys, as Patroni makes it of its namespace and scope. It
// ends in a slash.
func Dir(namespace, cluster string) string {
	return slashes.ReplaceAllString("/"+namespace+"/"+cluster+"/", "/")
}

// Key returns the key of a cluster's shared configuration.
func Key(namespace, cluster string) string { return Dir(namespace, cluster) + "config" }

// Store is what a configuration asks of the cluster's store. *etcdstore.Raw is one.
type Store interface {
	Get(ctx context.Context, key string) (value []byte, version uint64, err error)
	Put(ctx context.Context, key string, value []byte, version uint64) (next uint64, ok bool, err error)
}

// Errors of [Config.Read], [Config.Write] and [Config.Change], for errors.Is.
var (
	// ErrRefused: the document cannot be read, or says what cannot be. Nothing was written.
	ErrRefused = errors.New("the shared configuration is refused")
	// ErrConflict: somebody else has written it meanwhile. Nothing was written.
	ErrConflict = errors.New("somebody else has changed the shared configuration meanwhile")
)

// Config is the shared configuration of one cluster.
type Config struct {
	store Store
	key   string
}

// Of returns the configuration at a key. It does no I/O.
func Of(store Store, key string) *Config { return &Config{store, key} }

// Key returns where it stands.
func (c *Config) Key() string { return c.key }

// Read returns the document and its version. Where there is none the document is nil, and the
// version 0. With [ErrRefused] the version is that of what stands there.
func (c *Config) Read(ctx context.Context) (Document, uint64, error) {
	text, version, err := c.store.Get(ctx, c.key)
	if err != nil || version == 0 {
		return nil, 0, err
	}
	d, err := Parse(text)
	if err != nil {
		return nil, version, fmt.Errorf("%w: %s: %w; write another one there, or remove the key: then the primary "+
			"writes the last one that was good", ErrRefused, c.key, err)
	}
	return d, version, nil
}

// Write writes the document over that version; 0: if there is none. What no member would take is
// [ErrRefused]. After another error than that and [ErrConflict] it may have been written, or may
// yet be.
func (c *Config) Write(ctx context.Context, d Document, version uint64) (next uint64, err error) {
	if err := d.Validate(); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	next, ok, err := c.store.Put(ctx, c.key, d.JSON(), version)
	if err == nil && !ok {
		err = ErrConflict
	}
	return next, err
}

// Change changes the document, and returns it as it was and as it is. change gets nil where there
// is none. It may change what it gets, and is called again where somebody else has written
// meanwhile. Its error is returned, and nothing is written. Nor is anything where it has changed
// nothing, or returns nil.
func (c *Config) Change(ctx context.Context, change func(Document) (Document, error),
) (was, is Document, version uint64, err error) {
	for {
		if was, version, err = c.Read(ctx); err != nil {
			return nil, nil, version, err
		}
		in := was
		if version != 0 {
			in = was.Clone()
		}
		if is, err = change(in); err != nil || is == nil || version != 0 && is.Equal(was) {
			return was, is, version, err
		}
		next, err := c.Write(ctx, is, version)
		if errors.Is(err, ErrConflict) {
			continue
		}
		return was, is, next, err
	}
}
