package etcdstore

import (
	"strconv"
	"strings"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// The keys, all below one prefix:
//
//	<prefix><escaped name>/<lease>              an exclusive claim; its value is the claim's value, its create revision the token
//	<prefix><escaped name>/~<slots>/<lease>     a shared claim; 0 slots: any number
//	<prefix>@session/<lease>                    the session's record, who owns the lease
//	<prefix>@session/<lease>/ask/<escaped name> a request to the holder
//	<prefix>@beat/<lease>                       the session's heartbeat, where it has one (see heart)
//	<prefix>@journal/<escaped name>/<key>       a record of a journal
//
// <lease> is the lease's ID in lower-case hex, as etcd's own concurrency package writes it. So its elections and mutexes,
// `etcdctl elect` and `etcdctl lock` can stand in the same line. A session keeps the ID of its first lease in its keys, also
// when it has been moved to another one. Behind it a claim's key has "." and the seat, where it has one.
//
// "~" follows all hex digits in the order of bytes, so the exclusive claims of a line are one range of keys, and its shared claims are another.
const (
	sessions = "@session/"
	beats    = "@beat/"
	journals = "@journal/"
	beatMark = "+"

	noLine, pastNoLine = "@", "A" // all keys that are not of a line begin with the one and stand before the other: no escaped name does
)

const (
	sharedMark = "~"
	sharedEnd  = "\x7f" // ends the range of all keys that begin with the mark
)

// upper holds the digits of an escape. One spelling only: two would let one name have two lines.
const upper = "0123456789ABCDEF"

// plain reports whether c stands for itself in an escaped name.
func plain(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '.' || c == '-'
}

// escape writes name so that it holds neither "/" nor "@". With etcd's own layout the election "a" counts the claims of
// "a/b" as its own, and waits for them for ever.
func escape(name string) string {
	var b strings.Builder
	for i := 0; i < len(name); i++ {
		if c := name[i]; plain(c) {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'%', upper[c>>4], upper[c&15]})
		}
	}
	return b.String()
}

// unescape is the inverse of escape. It reports false for what escape never writes.
func unescape(s string) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if plain(s[i]) {
			b.WriteByte(s[i])
			continue
		}
		if s[i] != '%' || i+2 >= len(s) {
			return "", false
		}
		hi, lo := strings.IndexByte(upper, s[i+1]), strings.IndexByte(upper, s[i+2])
		if hi < 0 || lo < 0 || plain(byte(hi<<4|lo)) {
			return "", false
		}
		b.WriteByte(byte(hi<<4 | lo))
		i += 2
	}
	return b.String(), true
}

// prefixEnd returns the end of the range of all keys that begin with prefix.
func prefixEnd(prefix string) string {
	b := []byte(prefix)
	for i := len(b) - 1; i >= 0; i-- {
		if b[i] < 0xff {
			b[i]++
			return string(b[:i+1])
		}
	}
	return "\x00" // etcd's sign for "to the last key"
}

// hex writes a lease's ID as its keys end.
func hex(lease int64) string { return strconv.FormatInt(lease, 16) }

// lineDir returns what all claims on name begin with.
func (s *Store) lineDir(name string) string { return s.prefix + escape(name) + "/" }

// slotsDir returns what all shared claims with that many slots begin with, in the line whose claims begin with dir.
func slotsDir(dir string, slots int) string {
	return dir + sharedMark + strconv.Itoa(max(slots, 0)) + "/"
}

// claimKey returns the key of a claim. Stem is the session's part of it: see stemOf.
func (s *Store) claimKey(at spot, slots int, stem string) string {
	dir := s.lineDir(at.name)
	if slots != 0 {
		dir = slotsDir(dir, slots)
	}
	if at.seat != "" {
		return dir + stem + "." + at.seat
	}
	return dir + stem
}

// stemOf returns the session's part of its claims' keys. Beat is the ttl of its heartbeat, 0: it has none.
func stemOf(lease int64, beat time.Duration) string {
	if beat == 0 {
		return hex(lease)
	}
	return hex(lease) + beatMark + strconv.FormatInt(beat.Milliseconds(), 10)
}

// parseStem returns the ID of the session that a claim's key bears, and the ttl of the heartbeat that it says it has, 0 for none.
func parseStem(key string) (session string, beat time.Duration) {
	stem, _, _ := strings.Cut(key[strings.LastIndexByte(key, '/')+1:], ".")
	session, ms, marked := strings.Cut(stem, beatMark)
	if !marked {
		return session, 0
	}
	n, err := strconv.ParseInt(ms, 10, 64)
	if _, bad := strconv.ParseInt(session, 16, 64); bad != nil || err != nil || n <= 0 || n > maxTTL.Milliseconds() {
		return session, 0 // a stranger's, who only writes like this
	}
	return session, time.Duration(n) * time.Millisecond
}

// parseClaim returns what a claim's key says of it, which is in the line whose claims begin with dir: how many slots, and the session's ID,
// where the claim is a session's. Whatever other programs wrote is exclusive, as it is among themselves.
func parseClaim(dir, key string) (slots int, session string) {
	session, _ = parseStem(key)
	rest, shared := strings.CutPrefix(key, dir+sharedMark)
	if !shared {
		return 0, session
	}
	count, _, _ := strings.Cut(rest, "/")
	if n, err := strconv.Atoi(count); err == nil && n > 0 {
		return n, session
	}
	return driver.Unlimited, session
}

// isClaim reports whether a key is laid out as a claim that a store with this prefix makes. Behind the prefix of this store another one's may begin, "primacy/"
// and "primacy/billing/": then the line "billing" of the one holds all keys of the other, whose sessions have their records and heartbeats elsewhere.
func (s *Store) isClaim(key string) bool {
	rest, ours := strings.CutPrefix(key, s.prefix)
	parts := strings.Split(rest, "/")
	if !ours || len(parts) < 2 || len(parts) > 3 {
		return false
	}
	if len(parts) == 3 {
		if n, shared := strings.CutPrefix(parts[1], sharedMark); !shared || strings.Trim(n, "0123456789") != "" {
			return false
		}
	}
	_, name := unescape(parts[0])
	return name
}

// sessionKey returns the key of a lease's record.
func (s *Store) sessionKey(lease int64) string { return s.prefix + sessions + hex(lease) }

// beatKey returns the key of the heartbeat of the session of that ID.
func (s *Store) beatKey(session string) string { return s.prefix + beats + session }

// sessionEnd ends the range of a session's record and its requests, and of nothing else: "0" follows "/" in the order
// of bytes, so the range holds key, and key + "/…", but not the record of a lease whose ID begins with the same digits.
func sessionEnd(key string) string { return key + "0" }

// askKey returns the key of a request to the holder of name, whose session's record is record.
func askKey(record, name string) string { return record + "/ask/" + escape(name) }
