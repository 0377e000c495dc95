package registerstore

import "context"

// Register is a compare-and-swap storage: values under keys, each with a version that changes
// whenever the value does. Many goroutines use it at once.
//
// # The contract
//
//   - Each key is linearizable. Once a Put has returned ok, every Get that begins afterwards, by
//     anybody, returns that value or a later one. Of two Puts under one version one is carried out
//     at most. A cache, a follower that lags or an eventually consistent listing must not answer.
//   - Versions of a key never repeat, not even after it was deleted and made again: a Put that was
//     held up on its way must find that its version is gone. A counter in the value that begins
//     anew with each new file is not enough; put a random number beside it.
//   - A value lasts as long as the storage keeps its data. A Put that returned ok survives a crash,
//     or tokens may repeat (see [Options.Token]).
//   - The context is obeyed promptly, also when the network swallows packets.
//   - After an error the call may have happened, or may happen later. So a Register needs no
//     retries of its own. Where it makes some (most HTTP clients do), the second try of a Put may
//     be told ok = false because of the first: the adapter finds its own writes. Only an error that
//     wraps [github.com/primacy-go/primacy/driver.ErrRefused] is final: no permission, a value too
//     large. Nothing happened.
//
// Keys consist of lower-case letters, digits, "-" and ".", begin and end with a letter or digit if
// [Options.Prefix] does, and have at most 200 bytes beside it. Values are JSON: some 300 bytes for
// each claim in a line, and up to 64 KiB or [Options.Journal] for a journal.
type Register interface {
	// Get returns the value of key and its version. A key that is not there has the version "",
	// which is no error.
	Get(ctx context.Context, key string) (value []byte, version string, err error)

	// Put writes value if key has that version, and returns the version it has then. The version ""
	// says that key must not be there. With ok = false it has another version, or is not there, and
	// nothing is written.
	Put(ctx context.Context, key string, value []byte, version string) (next string, ok bool, err error)

	// Delete removes key if it has that version, which is not "". What is gone or has another
	// version is no error. It is only called for values that nobody writes again, so a storage that
	// cannot compare may delete as well, or do nothing: it only saves space.
	Delete(ctx context.Context, key, version string) error

	// List returns the keys that begin with prefix, in any order. It need not be linearizable: a
	// key that is being made or deleted may be missing.
	List(ctx context.Context, prefix string) ([]string, error)
}

// Watcher is a [Register] that can wait for a change, so that nobody needs to poll it.
type Watcher interface {
	// Watch blocks until key has another version than version (also: until it is made or deleted),
	// and returns what Get would. States, not events: what happened before the call counts, and
	// changes in between may be left out. It may return early, with the same version. The adapter
	// never relies on it alone.
	Watch(ctx context.Context, key, version string) (value []byte, next string, err error)
}
