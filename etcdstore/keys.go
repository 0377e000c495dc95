package etcdstore

import (
	"strconv"
	"strings"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdwire"
)

// layout is where a store's keys lie, all below one prefix:
//
//	<prefix><escaped name>/<stem>               an exclusive claim, with its value; its create
//	                                            revision is the token
//	<prefix><escaped name>/~<slots>/<stem>      a shared claim; 0 slots: any number
//	<prefix>@session/<lease>                    the session's record, who owns the lease
//	<prefix>@session/<lease>/ask/<escaped name> a request to the holder
//	<prefix>@session/<lease>/witness            shows that an etcd lease stood (see passOver)
//	<prefix>@beat/<lease>                       the session's heartbeat, where it has one
//	<prefix>@journal/<escaped name>/<key>       a record of a journal
//	<prefix>@kept/<escaped name>                a value that outlives its writer's term (Keep)
//
// <lease> is the ID of the session's first etcd lease in lower-case hex, which it keeps when it is
// moved to another one. <stem> is <lease>, then "+" and the ttl in milliseconds where the session
// has a heartbeat; behind it stands "." and the seat where the claim has one. etcd's own
// concurrency package ends its keys in a lease's ID too, so its elections and mutexes, `etcdctl
// elect` and `etcdctl lock` can stand in the same line.
type layout struct{ prefix string }

const (
	sessions = "@session/"
	beats    = "@beat/"
	journals = "@journal/"
	keptKeys = "@kept/"
	beatMark = "+"

	// All keys that are of no line are in [nonLine, nonLineEnd): no escaped name begins so.
	nonLine, nonLineEnd = "@", "A"
)

// upper holds the digits of an escape: with lower-case ones too, one name could have two lines.
const upper = "0123456789ABCDEF"

// isPlain reports whether escape leaves c as it is.
func isPlain(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '.' || c == '-'
}

// escape writes name without "/" and "@". In etcd's own layout the election "a" takes the claims of
// "a/b" for its own, and waits for them for ever.
func escape(name string) string {
	plain := 0
	for plain < len(name) && isPlain(name[plain]) {
		plain++
	}
	if plain == len(name) {
		return name // as nearly always: nothing is allocated
	}
	var b strings.Builder
	for i := 0; i < len(name); i++ {
		if c := name[i]; isPlain(c) {
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
		if isPlain(s[i]) {
			b.WriteByte(s[i])
			continue
		}
		if s[i] != '%' || i+2 >= len(s) {
			return "", false
		}
		hi, lo := strings.IndexByte(upper, s[i+1]), strings.IndexByte(upper, s[i+2])
		if hi < 0 || lo < 0 || isPlain(byte(hi<<4|lo)) {
			return "", false
		}
		b.WriteByte(byte(hi<<4 | lo))
		i += 2
	}
	return b.String(), true
}

// hex writes a lease's ID as keys have it.
func hex(lease int64) string { return strconv.FormatInt(lease, 16) }

// keptKey returns the key of what leaders keep under name.
func (k layout) keptKey(name string) string { return k.prefix + keptKeys + escape(name) }

// lineDir returns what all claims on name begin with.
func (k layout) lineDir(name string) string { return k.prefix + escape(name) + "/" }

// slotsDir returns what all shared claims with that many slots begin with, in the line whose
// claims begin with dir.
func slotsDir(dir string, slots int) string {
	return dir + etcdwire.SharedMark + strconv.Itoa(max(slots, 0)) + "/"
}

// claimKey returns the key of a claim. Stem is the session's part of it: see stemOf.
func (k layout) claimKey(id seatID, slots int, stem string) string {
	dir := k.lineDir(id.Name)
	if slots != 0 {
		dir = slotsDir(dir, slots)
	}
	if id.Seat != "" {
		return dir + stem + "." + id.Seat
	}
	return dir + stem
}

// stemOf returns the session's part of its claims' keys. Beat is the ttl of its heartbeat, 0 for
// none.
func stemOf(lease int64, beat time.Duration) string {
	if beat == 0 {
		return hex(lease)
	}
	return hex(lease) + beatMark + strconv.FormatInt(beat.Milliseconds(), 10)
}

// parseStem returns the ID of the session in a claim's key, and the ttl of its heartbeat, 0 for
// none.
func parseStem(key string) (session string, beat time.Duration) {
	stem, _, _ := strings.Cut(key[strings.LastIndexByte(key, '/')+1:], ".")
	session, ms, marked := strings.Cut(stem, beatMark)
	if !marked {
		return session, 0
	}
	n, err := strconv.ParseInt(ms, 10, 64)
	if _, bad := strconv.ParseInt(session, 16, 64); bad != nil || err != nil || n <= 0 || n > maxTTL.Milliseconds() {
		return session, 0 // another program's key that only looks so
	}
	return session, time.Duration(n) * time.Millisecond
}

// parseClaim returns the slots and the session's ID in the key of a claim, which is in the line of
// dir. Claims of other programs are exclusive.
func parseClaim(dir, key string) (slots int, session string) {
	session, _ = parseStem(key)
	rest, shared := strings.CutPrefix(key, dir+etcdwire.SharedMark)
	if !shared {
		return 0, session
	}
	count, _, _ := strings.Cut(rest, "/")
	if n, err := strconv.Atoi(count); err == nil && n > 0 {
		return n, session
	}
	return driver.Unlimited, session
}

// isClaim reports whether a store with this prefix makes keys like this one. A key in one of its
// lines may be another store's: all keys of a store with the prefix "primacy/billing/" are in the
// line "billing" of a store with the prefix "primacy/". Their sessions have no records below the
// shorter prefix.
func (k layout) isClaim(key string) bool {
	rest, ours := strings.CutPrefix(key, k.prefix)
	parts := strings.Split(rest, "/")
	if !ours || len(parts) < 2 || len(parts) > 3 {
		return false
	}
	if len(parts) == 3 {
		if n, shared := strings.CutPrefix(parts[1], etcdwire.SharedMark); !shared || strings.Trim(n,
			"0123456789") != "" {
			return false
		}
	}
	_, ok := unescape(parts[0])
	return ok
}

func (k layout) sessionKey(lease int64) string { return k.prefix + sessions + hex(lease) }

func (k layout) beatKey(session string) string { return k.prefix + beats + session }

// sessionEnd ends the range of a session's record and its requests. "0" follows "/": the range has
// key and key + "/…", but no record of a lease whose ID begins with the same digits.
func sessionEnd(key string) string { return key + "0" }

// askKey returns the key of a request to the holder of name, whose session's record is record.
func askKey(record, name string) string { return record + "/ask/" + escape(name) }

// witnessKey returns the key by which passOver asks whether an etcd lease of the session stands.
func witnessKey(record string) string { return record + "/witness" }

func (k layout) journalsDir() string { return k.prefix + journals }

func (k layout) journalDir(name string) string { return k.journalsDir() + escape(name) + "/" }
