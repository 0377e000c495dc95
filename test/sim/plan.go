package sim

import (
	"cmp"
	"fmt"
	"slices"
)

// Plan is everything that makes one run: from equal plans come equal runs. A seed gives a plan;
// shrinking makes it smaller.
type Plan struct {
	Seed       uint64 // of what is not listed here: delays, losses, orders
	Store      string // one of Stores
	Nodes      int
	Names      int
	TTL        int64 // all durations are in nanoseconds
	Rounds     int64 // the store grants so much more than was asked for
	Beat       int64 // with the store "beat" the ttl of leases, which waiters end; TTL is then that of the leases below
	Span       int64 // faults happen until then, in true time
	Tick       int64 // how late the store may notice that a lease ran out
	Think      int64 // between two acts of a leader
	Quits      int64 // how many terms in a million end because the work is done
	Lazy       int64 // how many have work that does not stop in time
	Rest       int64 // how many are followed by a long rest before the candidate stands again
	Exit       bool  // work that outlives its right ends its process
	Rates      []int64
	Offsets    []int64
	StoreRates []int64 // of the store's one clock, or of each member's
	Net        Net
	NoToken    bool // the store has no line and no token
	Loses      bool // a server that is restarted has forgotten everything
	ZK         Ensemble
	Mirror     Mirror
	Group      Group
	Faults     []Fault
	Overlaps   bool // two leaders at once are counted, not a violation: for clocks beyond the bound
	Broken     Broken
}

// Net is how messages and goroutines fare, in parts of 2^20 (Loss, Dup, Late, Stall) or in a
// million (the others).
type Net struct {
	Base    int64 // usual delay
	Loss    int64
	Dup     int64
	Late    int64 // by up to twice the TTL
	Deaf    int64 // signals that the store pushes and that are lost
	Flying  int64 // writes that are under way for up to twice the TTL
	Stall   int64 // goroutines that get no turn for up to twice the TTL
	Stumble int64 // places where another goroutine runs in between
	Hang    int64 // renewals from which the store client never comes back
	Refuse  int64 // claims that the store refuses
}

// Broken breaks the world on purpose, to show that the judge sees it.
type Broken struct {
	NoFence     bool // the register takes every token
	Herd        bool // the store wakes every waiter
	Blind       bool // who waits ends a session whatever its heartbeat has become
	Hasty       bool // who waits counts from when it asked
	Unproven    bool // a heartbeat counts whatever has become of the lease below
	ReadProof   bool // a read shows that a ZooKeeper session lives
	OneWrite    bool // or one write that it was renewed
	NoCalm      bool // a Redis that forgot something grants at once
	HalfCalm    bool // or after half the ttl
	LastTTL     bool // or remembers only the last ttl
	OnePeriod   bool // or those of the present period
	EarlyTicket bool // and draws tokens by the time, before it grants again
	NoGuard     bool // of a quorum each server counts at once
	NoRecheck   bool // and an attempt that won late counts
	Async       bool // a PostgreSQL whose standby lags
	OneClock    bool // and that trusts the times of another server's clock
	NoWait      bool // and a former primary acknowledges what no replica has
	Short       bool // or the write before the last
	Hurry       bool // the last of three writes follows at once

	NoUID         bool // a write to an API server names no uid
	Cached        bool // reads are answered from a server's cache
	EmptyList     bool // a list that failed is an empty one
	FinalAfter503 bool // a refusal is final whatever was sent before
	Numbers       bool // of two states of a line the one with the larger number is the later, always
	OneSignal     bool // a watch is relied upon alone
	LateAnswers   bool // an answer that comes late may tell of a line that was removed since

	AnyTerm     bool // an owner hands a shard over whichever of its terms was asked to
	EarlyHand   bool // or before its work has stopped
	OldPlan     bool // members follow a plan of an assigner that leads no more
	OneAssigner bool // who has led a group does not stand for that again
	RecordLast  bool // a member that is restarted gives its shards up before it says that it will be back
}

// FaultKind is a kind of fault.
type FaultKind uint8

// The kinds of faults.
const (
	Pause FaultKind = iota
	Suspend
	Crash
	CutBoth
	CutOut
	CutIn
	StoreDown   // the store restarts, or a member of it
	LeaderPause // the member that leads the store is stopped, and wakes up
	LeaderCut   // it is cut off from its peers, but not from clients
	LeaderBoth  // it is cut off and stopped
	MemberPause
	MemberCut // one machine reaches all members but one
	StoreRate // the store's clock changes its rate
	NodeRate
	GiveUp // a candidate is told to stop, and stands again
	Delete // an operator deletes a claim
	Revoke // an operator revokes a lease
	Aimed  // a process is paused between a renewal and its answer, and cut off once it wakes up
	Asked  // somebody asks the holder to resign
	kinds
)

var kindNames = [kinds]string{"process paused", "machine suspended", "process killed", "cut off", "cut off, outgoing",
	"cut off, incoming",
	"store restarted", "store's leader paused", "store's leader cut off", "store's leader cut off and paused",
	"store member paused",
	"one member out of reach", "store clock changes rate", "clock changes rate", "candidate told to give up",
	"claim deleted by hand", "lease revoked by hand",
	"paused while a renewal is under way, then cut off", "holder asked to resign"}

// String returns the kind in words.
func (k FaultKind) String() string { return kindNames[k] }

// Fault is something that goes wrong at an instant of true time, for a while.
type Fault struct {
	At   int64
	Kind FaultKind
	Node uint8
	For  int64
	Arg  int64
}

// String returns the fault in words.
func (f Fault) String() string {
	return fmt.Sprintf("%v %v (node %d, %v, %d)", span(f.At), f.Kind, f.Node+1, span(f.For), f.Arg)
}

// Drift says how the clocks of a plan run.
type Drift int

// Within keeps every two clocks within the drift bound of 10 % of the TTL; Beyond does not.
const (
	Within Drift = iota
	Beyond
)

// NewPlan returns the plan of a seed. Store is one of Stores, or "all" for some of each.
func NewPlan(seed uint64, store string, drift Drift) *Plan {
	r := rng{seed * 0x9e3779b97f4a7c15}
	p := &Plan{Seed: r.next(), Store: store}
	p.Nodes = 2 + r.intn(4)
	p.Names = 1 + r.intn(2)
	p.TTL = [...]int64{10 * sec, 10 * sec, 5 * sec}[r.intn(3)]
	if store == "all" {
		p.Store = pick(&r)
	}
	p.Span = r.span(2*p.TTL, 8*p.TTL)
	p.Tick = [...]int64{1, 500 * ms}[r.intn(2)]
	p.Think = r.span(p.TTL/40, p.TTL/8)
	p.Quits = [...]int64{0, 300_000, 800_000}[r.intn(3)]
	p.Lazy = [...]int64{0, 150_000, 500_000}[r.intn(3)]
	p.Rest = [...]int64{0, 200_000}[r.intn(2)]
	p.Exit = r.intn(2) == 0
	p.Net = newNet(&r)
	p.clocks(&r, drift)
	p.trouble(&r)
	if plan := modelOf(p.Store).plan; plan != nil {
		plan(p, &r)
	}
	return p
}

func newNet(r *rng) Net {
	n := Net{Base: r.span(200*us, 20*ms), Flying: 100_000, Stumble: 50_000, Deaf: int64(r.intn(2)) * 300_000}
	hard := r.intn(4)
	if hard > 0 {
		n.Loss = r.span(0, 315_000*int64(hard)/3) // up to 30 %
		n.Dup = r.span(0, 210_000)
		n.Late = r.span(0, 210_000*int64(hard)/3)
	}
	n.Stall = [...]int64{0, 100, 1500}[r.intn(3)]
	n.Refuse = [...]int64{0, 30_000}[r.intn(2)]
	n.Hang = [...]int64{0, 0, 5000}[r.intn(3)]
	return n
}

// clocks sets rates and offsets. A node may be slower than the store by so much that 10 % of the
// TTL just covers it.
func (p *Plan) clocks(r *rng, drift Drift) {
	lo, hi := int64(-52_000), int64(52_000) // (1 − 0.052) / (1 + 0.052) = 0.9011
	switch r.intn(4) {
	case 0:
		lo, hi = 0, 1
	case 1:
		lo, hi = -500, 500
	}
	edge := r.intn(3) == 0 // all at one end or the other
	pick := func() int64 {
		if edge && r.intn(2) == 0 {
			return [...]int64{lo, hi}[r.intn(2)]
		}
		return r.span(lo, hi)
	}
	for range p.Nodes {
		p.Rates = append(p.Rates, pick())
		p.Offsets = append(p.Offsets, r.span(0, 1_000_000*sec))
	}
	for range 3 {
		p.StoreRates = append(p.StoreRates, pick())
	}
	if drift == Beyond {
		p.Overlaps = true
		for i := range p.Rates {
			p.Rates[i] = r.span(-350_000, -150_000)
		}
		for i := range p.StoreRates {
			p.StoreRates[i] = r.span(50_000, 150_000)
		}
	}
}

// trouble lists the faults.
func (p *Plan) trouble(r *rng) {
	for range r.intn(int(p.Span/p.TTL) * 3) {
		f := Fault{At: r.span(0, p.Span), Kind: FaultKind(r.intn(int(kinds))), Node: uint8(r.intn(p.Nodes)),
			Arg: int64(r.next() >> 8)}
		f.For = min(r.span(p.TTL/20, 2*p.TTL), p.Span-f.At)
		switch f.Kind {
		case StoreRate, NodeRate:
			lo, hi := slices.Min(p.Rates), slices.Max(p.Rates)
			if f.Kind == StoreRate {
				lo, hi = slices.Min(p.StoreRates), slices.Max(p.StoreRates)
			}
			f.Arg = r.span(lo, hi+1)
		case Aimed:
			f.For = r.span(p.TTL/20, p.TTL*7/10)
		case Delete, Revoke:
			if r.intn(3) != 0 {
				f.Kind = [...]FaultKind{Pause, Suspend, CutBoth}[r.intn(3)]
			}
		}
		p.Faults = append(p.Faults, f)
	}
	p.sort()
}

func (p *Plan) sort() {
	slices.SortStableFunc(p.Faults, func(a, b Fault) int { return cmp.Compare(a.At, b.At) })
}

// pester adds some faults of certain kinds, those that a store of this kind has most to fear from.
func (p *Plan) pester(r *rng, kinds ...FaultKind) {
	for range r.intn(8) {
		f := Fault{At: r.span(0, p.Span), Kind: kinds[r.intn(len(kinds))], Node: uint8(r.intn(p.Nodes)),
			Arg: int64(r.next() >> 8)}
		f.For = min(r.span(p.TTL/20, 2*p.TTL), p.Span-f.At)
		p.Faults = append(p.Faults, f)
	}
	p.sort()
}

// String returns what is special about the plan.
func (p *Plan) String() string {
	s := fmt.Sprintf("%d nodes, %d names, %s store, ttl %v, %d faults until %v; rates in millionths: nodes %v, "+
		"store %v",
		p.Nodes, p.Names, p.Store, span(p.TTL), len(p.Faults), span(p.Span), p.Rates, p.StoreRates)
	if g := p.Group; g.On {
		s += fmt.Sprintf("; %d shards, %+v", p.shards(), g)
	}
	n := p.Net
	return s + fmt.Sprintf("; loss %.1f %%, doubled %.1f %%, late %.1f %%", float64(n.Loss)/10486,
		float64(n.Dup)/10486, float64(n.Late)/10486)
}
