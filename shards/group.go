package shards

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
)

// Limits of a group.
const (
	MaxShards = 10_000
	MaxWeight = 1_000
	MaxValue  = 512 // bytes of Options.Value
)

// movesMost is how many moves may be under way: as many as fit into a value beside the longest
// record, see TestTheLongestRecordAndAllMovesFitIntoAValue.
const movesMost = 100

// Defaults of [Options].
const (
	DefaultSettle       = 500 * time.Millisecond
	DefaultSettleMax    = 5 * time.Second
	DefaultCooldown     = time.Minute
	DefaultReadyTimeout = 30 * time.Second
	DefaultLeaveTimeout = 10 * time.Second
)

// Options of a member. The zero value works. What the comments call the assigner's counts only
// while this member is the assigner: give all members of a group the same.
type Options struct {
	// Weight is how many shards this member gets compared with others. Default 1, at most
	// MaxWeight.
	Weight int
	// Value is what observers see of this member and beside each shard that it owns: its address,
	// say. At most MaxValue bytes.
	Value []byte
	// Warm, if not nil, prepares this member for a shard before it stands for it: the present
	// owner, if there is one, keeps the shard meanwhile. Its context ends when the shard goes to
	// somebody else. After an error this member avoids the shard for a while. If nobody owns the
	// shard, it has no owner until Warm has returned.
	Warm func(ctx context.Context, shard int) error
	// Healthy, if not nil, is asked each 2 s, for 2 s at most: no answer is a failure. A member is
	// not ready until it has succeeded once; after three failures in a row, until five successes in
	// a row. Who is not ready gives its shards to those who are, one after the other. If nobody is
	// ready, nothing moves. See also [Group.SetReady].
	Healthy func(ctx context.Context) error
	// Paused, if not nil, says whether moves are paused. The assigner asks it before it moves
	// shards for balance or health: of the group's name, at most once a second, and of the name of
	// a shard's election ([Shard].Term's) before it asks its owner. It has a second to answer;
	// meanwhile, and after an error, moves count as paused. Shards of members that leave, and those
	// that nobody owns, go to others all the same.
	Paused func(ctx context.Context, name string) (bool, error)
	// LeaveTimeout is how long a member that leaves waits until others have taken its shards.
	// After that, or as soon as nobody is there to take them, it gives them up: set it to more than
	// Warm takes for all of them. A member that does not stand for such a shard within a third of
	// the assigner's LeaveTimeout is passed over, if there is another. Default 10 s; negative: it
	// does not wait.
	LeaveTimeout time.Duration
	// RestartGrace, if not 0, says that after Run's ctx has ended this member will be back, within
	// that time and under the same session ID (primacy.Options.ID). It gives its shards up at once,
	// and they wait for it: until it is back, or the time has passed, nobody owns them. The store
	// must keep records (driver.Journal). At most an hour.
	RestartGrace time.Duration
	// Settle is for how long nobody must have come or left before the assigner moves shards for
	// balance, and SettleMax for how long it waits at most. The assigner's. Defaults 0.5 s, 5 s.
	Settle, SettleMax time.Duration
	// Moves is how many shards may be under way at a time for balance and health, at most 100. The
	// assigner's. Default 2 % of the shards, at least 1.
	Moves int
	// Cooldown is for how long a shard that has moved is not moved again for balance. The
	// assigner's. Default 1 min.
	Cooldown time.Duration
	// ReadyTimeout is how long a member may take until it stands for a shard (Warm). After that
	// the assigner chooses another, if there is one or the shard has an owner. The assigner's.
	// Default 30 s.
	ReadyTimeout time.Duration
	// Logger gets a line when this member takes or gives up a shard, and from the assigner one for
	// each move with its reason. Default: none.
	Logger *slog.Logger
}

func (o Options) fill(n int) (Options, error) {
	for _, d := range []struct {
		what  string
		value *time.Duration
		other time.Duration
	}{
		{"Settle", &o.Settle, DefaultSettle}, {"SettleMax", &o.SettleMax, DefaultSettleMax},
		{"Cooldown", &o.Cooldown, DefaultCooldown}, {"ReadyTimeout", &o.ReadyTimeout, DefaultReadyTimeout},
	} {
		if *d.value < 0 {
			return o, fmt.Errorf("%s %v must not be negative", d.what, *d.value)
		}
		if *d.value == 0 {
			*d.value = d.other
		}
	}
	if o.LeaveTimeout == 0 {
		o.LeaveTimeout = DefaultLeaveTimeout
	}
	if o.Weight == 0 {
		o.Weight = 1
	}
	if o.Moves == 0 {
		o.Moves = max(1, min(n/50, movesMost))
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	switch {
	case o.Weight < 0 || o.Weight > MaxWeight:
		return o, fmt.Errorf("weight %d: use 1 to %d", o.Weight, MaxWeight)
	case o.Moves < 0 || o.Moves > movesMost:
		return o, fmt.Errorf("moves %d: use 1 to %d", o.Moves, movesMost)
	case len(o.Value) > MaxValue:
		return o, fmt.Errorf("the value has %d bytes, more than %d", len(o.Value), MaxValue)
	case o.RestartGrace < 0 || o.RestartGrace > time.Hour:
		return o, fmt.Errorf("restart grace %v: use at most an hour", o.RestartGrace)
	case o.SettleMax < o.Settle:
		return o, fmt.Errorf("SettleMax %v is less than Settle %v", o.SettleMax, o.Settle)
	}
	return o, nil
}

// Reason is why a shard moves from a living member to another, as one word that does not change.
type Reason string

// The reasons of moves.
const (
	Balance Reason = "balance" // somebody came, left or changed its weight
	Drain   Reason = "drain"   // its owner leaves
	Health  Reason = "health"  // its owner is not ready
)

// reasons is in the order of the encoded numbers.
var reasons = [...]Reason{Balance, Drain, Health}

// Why a handler's context ends, and other errors. Test with errors.Is. A term that ends for another
// reason has that of package primacy: ErrTransferred is a move.
var (
	// ErrLeft is the cause when this member leaves the group and nobody has taken the shard.
	ErrLeft = errors.New("this member leaves the group")
	// ErrShards says that the group has another number of shards than this member was made for.
	ErrShards = errors.New("the group has another number of shards")
)

// Shard is a shard that this member owns.
type Shard struct {
	Group  string
	Number int           // from 0 to the number of shards less 1
	Term   *primacy.Term // of the shard's election: its token, deadline and Check
}

// Group is a member of a group of shards. It is safe for concurrent use.
type Group struct {
	s *primacy.Session
	o Options
	follower

	// Each holds an element if the record has changed: for announce, and for the assigner.
	changed, recordChanged chan struct{}
	lines                  chan slog.Record
	working                sync.WaitGroup // one for each seat and each set-back
	// Set by begin, before anything else runs.
	started time.Time // of the clock that set-backs and the assigner's times are on
	handler func(context.Context, *Shard) error
	shards  context.Context // ends when all shards must be given up

	restated atomic.Uint64 // how often announce has restated the record, which erases the plan beside it

	mu        sync.Mutex
	running   bool
	assigning bool // the assigner announces the record, beside its plan
	record    record
	healthy   bool                  // as Options.Healthy says
	ready     bool                  // as SetReady has said
	movedAt   map[int]time.Duration // when shards have moved, as plans have told: for the next assigner's cooldown
	seats     map[int]*seat         // shards that this member stands for or owns
	setBack   map[int]setBack       // shards whose handler returned, or failed to warm
	leaving   bool
	idle      chan struct{} // closed when seats is empty; nil while nobody waits for that
}

// New returns a member of the group with that name and n shards; nil options are the zero value. It
// does no I/O. The error is a primacy.ErrInvalid if the name, the number or an option cannot work,
// or if the store has no lines with tokens.
//
// The group uses the election NAME, and the elections NAME/0000 to NAME/9999 for its shards. So a
// name whose last part is four digits is refused.
func New(session *primacy.Session, name string, n int, o *Options) (*Group, error) {
	if o == nil {
		o = &Options{}
	}
	invalid := func(format string, args ...any) error {
		return fmt.Errorf("shards %s: %w: %s", name, primacy.ErrInvalid, fmt.Sprintf(format, args...))
	}
	if err := primacy.CheckName(name); err != nil {
		return nil, err
	}
	if len(name) > primacy.MaxName-len("/0000") {
		return nil, invalid("the name has %d bytes, more than %d", len(name), primacy.MaxName-len("/0000"))
	}
	if i := len(name) - len("/0000"); i >= 0 {
		if _, is := shardNumber(name[:i], name); is {
			return nil, invalid("the name ends like that of a shard; use one that does not end in four digits")
		}
	}
	if n < 1 || n > MaxShards {
		return nil, invalid("%d shards: use 1 to %d", n, MaxShards)
	}
	full, err := o.fill(n)
	if err != nil {
		return nil, invalid("%v", err)
	}
	caps := session.Store().Caps()
	if !caps.FIFO || caps.Token == driver.TokenNone {
		return nil, invalid("%s has no lines with tokens, by which a shard goes from one member to another", caps.Store)
	}
	if _, ok := session.Store().(driver.Journal); !ok && full.RestartGrace > 0 {
		return nil, invalid("%s keeps no records, which RestartGrace needs", caps.Store)
	}
	var b [6]byte
	rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	g := &Group{s: session, o: full,
		follower: follower{name: name, n: n, id: session.ID(), instance: hex.EncodeToString(b[:])},
		changed:  make(chan struct{}, 1), recordChanged: make(chan struct{}, 1),
		lines: make(chan slog.Record, logLines), seats: map[int]*seat{}, setBack: map[int]setBack{}, ready: true,
		movedAt: map[int]time.Duration{}}
	g.follower.log = g.log
	g.o.Value = bytes.Clone(full.Value)
	g.record = record{Shards: n, Instance: g.instance, Weight: full.Weight, Value: g.o.Value} // begin sets Ready
	return g, nil
}

// Name returns the group's name.
func (g *Group) Name() string { return g.name }

// Shards returns how many shards the group has.
func (g *Group) Shards() int { return g.n }

// Owned returns the shards that this member owns, by number. Whether it still does is what each
// term's Check says.
func (g *Group) Owned() []Shard {
	g.mu.Lock()
	defer g.mu.Unlock()
	var all []Shard
	for i := range g.n {
		if at := g.seats[i]; at != nil && at.term != nil && at.term.Check() == nil {
			all = append(all, Shard{g.name, i, at.term})
		}
	}
	return all
}

// SetReady says whether this member can take shards. One that is not ready gives those that it has
// to others. With Options.Healthy it is ready while both say so. At first it is ready.
func (g *Group) SetReady(ready bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ready = ready
	g.setReadyLocked()
}

func (g *Group) setHealthy(healthy bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.healthy = healthy
	g.setReadyLocked()
}

func (g *Group) setReadyLocked() {
	if ready := g.ready && g.healthy; g.record.Ready != ready {
		g.record.Ready = ready
		g.tellLocked()
	}
}

// Run makes this process a member of the group until ctx ends, and calls handler for each shard
// that it owns, each on a goroutine of its own. The rules for a handler are those of the work of a
// [primacy.Candidate]: its context ends when it has to stop, it should return soon after, and only
// then the shard goes to somebody else. A shard that was given to another member ended for
// primacy.ErrTransferred.
//
// A handler that returns by itself, with an error or without, gives its shard up. The shard goes to
// another member if there is one. This member avoids it for a second, and twice as long each time
// that happens again, up to a minute. One that ends its goroutine (runtime.Goexit) has failed.
//
// When ctx ends, the member leaves: it takes no more shards, and others take those that it has, as
// in any move. After Options.LeaveTimeout, or once nobody else is there, it gives up the rest, with
// ErrLeft as the cause. Run returns after all handlers have returned: nil if ctx has ended. It
// returns earlier with an ErrShards if the group has another number of shards, with an ErrRefused
// if the store refuses the group's election, and with an ErrClosed once the session is closed. A
// Group runs once at a time, and one Group of a name on a session: another gets an ErrInvalid. End
// ctx and wait for Run before you close the session: Close ends all terms at once, and nothing is
// handed over.
func (g *Group) Run(ctx context.Context, handler func(ctx context.Context, s *Shard) error) error {
	return g.run(ctx, handler)
}
