package primacy

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/core"
)

// Limits of names and values, the same for every store.
const (
	MaxName  = 255  // bytes of a name or an ID
	MaxValue = 4096 // bytes of a value announced
	MaxTTL   = 300 * time.Second
	// DefaultTTL is the TTL of a lease unless Options name another. With it a frozen server of the
	// store, or an election among its servers, ends no term; a crash is taken over in some 10 s.
	DefaultTTL = 10 * time.Second

	defaultHistory = 100 // terms of an election that are kept
	maxHistory     = 10_000
)

// Overrun is what happens when the work of a candidate, or of a lock's Do, still runs though the
// right of its term is over.
type Overrun int

const (
	// OverrunExit ends this process with status 122. It is the default, and the only choice that
	// keeps the promise for such work: nothing else can stop it.
	OverrunExit Overrun = iota
	// OverrunWait waits for the work, counts it (Stats.Overruns) and logs an error. Until the work
	// returns it may act beside the next leader, and only a fence refuses its writes.
	OverrunWait
)

// Options of a session. The zero value works.
type Options struct {
	// ID is this process among the candidates. Default: HOSTNAME-PID-XXXX with four random hex
	// digits.
	//
	// Two processes that run at the same time must not have the same ID. Nothing breaks, but nobody
	// can tell them apart, and a request by ID reaches either. After one and a half TTLs in a line
	// the session looks once whether another process stands there under its ID, and reports it: by
	// the event DuplicateID and a warning in the log.
	//
	// A process that is started again under its ID does not get its old place back. It waits until
	// its old lease has run out: at most a TTL, not at all after Session.Close. Only then is the
	// old process known to have stopped.
	ID string
	// TTL of the lease. Default 10 s. The store may grant more, never less.
	TTL time.Duration
	// Drift is by how much the rates of this machine's clock and of the store's may differ, as a
	// part of the TTL. Default 0.10.
	Drift float64
	// Grace is the time from the end of a term's context to the deadline, when renewals fail: the
	// time that the work has to stop. Default a tenth of the TTL.
	Grace time.Duration
	// RenewEvery is the time from one renewal to the next. Default a fifth of the TTL. If it is 0
	// and the TTL is 7 s or more, a session that holds nothing sends only every second renewal, so
	// that standbys ask half as much of the store. (Not on a store where each renewal rests on
	// those before, as on ZooKeeper: [driver.Caps].ChainedRenew.)
	RenewEvery time.Duration
	// RenewAttempt is the time limit of one renewal, and of one call that enters, releases or hands
	// over a claim. Other calls have at least a second. Default a tenth of the TTL. For a TTL below
	// 2.5 s it is longer, up to 250 ms, as long as two attempts in a row still end before the
	// terms' contexts would.
	RenewAttempt time.Duration
	// Overrun is what happens when work outlives its right. Default: the process exits.
	Overrun Overrun
	// History is how many terms of each election are kept in the store at least, for
	// [Election.History]. Default 100. A negative number keeps nothing. Nothing is kept of locks,
	// nor on a store that keeps no records (driver.Journal) or gives no tokens.
	History int
	// Logger gets one line for each transition. Default: none.
	Logger *slog.Logger
}

// fill returns o with defaults, or an error that says which options cannot work together.
func (o Options) fill(caps driver.Caps) (Options, error) {
	if o.ID == "" {
		o.ID = defaultID()
	}
	if err := checkText("id", o.ID); err != nil {
		return o, err
	}
	if o.TTL == 0 {
		o.TTL = DefaultTTL
	}
	if top := maxTTL(caps); o.TTL < caps.MinTTL || o.TTL > top {
		return o, invalid("ttl %v: %s keeps leases of %v to %v", o.TTL, caps.Store, caps.MinTTL, top)
	}
	if err := o.timing(o.TTL).Validate(); err != nil {
		return o, invalid("%v", err)
	}
	if o.Overrun != OverrunExit && o.Overrun != OverrunWait {
		return o, invalid("overrun %d: use OverrunExit or OverrunWait", o.Overrun)
	}
	if o.History == 0 {
		o.History = defaultHistory
	}
	if o.History > maxHistory {
		return o, invalid("history %d: keep at most %d terms", o.History, maxHistory)
	}
	return o, nil
}

// timing returns how a lease of that TTL is kept: what the options leave at 0 follows from the TTL.
func (o Options) timing(granted time.Duration) core.Timing {
	return core.Timing{Drift: o.Drift, Grace: o.Grace, Every: o.RenewEvery, Attempt: o.RenewAttempt}.Fill(granted)
}

func maxTTL(caps driver.Caps) time.Duration {
	if caps.MaxTTL > 0 {
		return min(caps.MaxTTL, MaxTTL)
	}
	return MaxTTL
}

func defaultID() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "host"
	}
	var b [2]byte
	rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	tail := fmt.Sprintf("-%d-%s", os.Getpid(), hex.EncodeToString(b[:]))
	return strings.ToValidUTF8(host[:min(len(host), MaxName-len(tail))], "") + tail
}

// CheckName returns an ErrInvalid that says what is wrong with name, or nil. A name is 1 to 255
// bytes of UTF-8 without control characters; slashes are allowed and mean nothing to the store ("a"
// and "a/b" are two names).
func CheckName(name string) error { return checkText("name", name) }

func checkText(what, s string) error {
	switch {
	case s == "":
		return invalid("the %s is empty", what)
	case len(s) > MaxName:
		return invalid("the %s has %d bytes, more than %d", what, len(s), MaxName)
	case !utf8.ValidString(s):
		return invalid("the %s %q is not valid UTF-8", what, s)
	}
	for i, r := range s {
		if r < 0x20 || r == 0x7f || r >= 0x80 && r <= 0x9f {
			return invalid("the %s %q has the control character %U at byte %d", what, s, r, i)
		}
	}
	return nil
}

func checkValue(v []byte) error {
	if len(v) > MaxValue {
		return invalid("the value has %d bytes, more than %d", len(v), MaxValue)
	}
	return nil
}

// Token is a fencing token: larger than that of every earlier term of the name. Send it with each
// write, and let the resource refuse a smaller one. In JSON it is a string, since many readers
// round large numbers.
type Token uint64

// String returns the token in decimal.
func (t Token) String() string { return strconv.FormatUint(uint64(t), 10) }

// MarshalText returns the token in decimal.
func (t Token) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText reads a token in decimal.
func (t *Token) UnmarshalText(b []byte) error {
	n, err := strconv.ParseUint(string(b), 10, 64)
	if err != nil {
		return invalid("the token %q is not a whole number", b)
	}
	*t = Token(n)
	return nil
}

// turnBits is the number of low bits of a lock's token that count turns. A turn is how many of
// this process held the lock under the same claim before: at most core.MaxTurns, 65,535.
const turnBits = 16

// lockToken returns the fencing token of a lock's holder: the claim's token times 65,536, plus how
// many of this process held the lock under that claim before. A later claim has a larger token, so
// each holder has a larger one than every earlier holder. Tokens of an [Election] of the same name
// are on another scale.
func lockToken(claim uint64, turn int) Token {
	if claim == 0 {
		return 0 // the store gives no tokens, and the turns alone would begin again with each claim
	}
	return Token(claim<<turnBits | uint64(turn))
}
