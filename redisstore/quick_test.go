package redisstore

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/primacy-go/primacy/internal/redistest"
	"github.com/primacy-go/primacy/internal/servertest"
)

// way is a server with the scripts as they are, or without their short way.
type way struct {
	t                        *testing.T
	c                        *redis.Client
	pushes                   *redis.PubSub
	claim, release, exchange string
	tokens                   []string // in the order in which they were drawn
	revisions                map[string]int64
}

func newWay(t *testing.T, long bool) *way {
	srv := redistest.Start(t, redistest.Options{})
	w := &way{t: t, c: redis.NewClient(&redis.Options{Addr: srv.Addr()}), claim: claimScript.text(),
		release: releaseScript.text(), exchange: exchangeScript.text(),
		revisions: map[string]int64{}}
	t.Cleanup(func() { w.c.Close() })
	if long {
		w.claim, w.release = strings.Replace(w.claim, quickClaimLua, "", 1), strings.Replace(w.release, quickReleaseLua, "", 1)
		w.exchange = strings.Replace(w.exchange, quickExchangeLua, "", 1)
	}
	w.pushes = w.c.PSubscribe(t.Context(), "*")
	t.Cleanup(func() { w.pushes.Close() })
	if _, err := w.pushes.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *way) run(text string, args ...any) reply {
	w.t.Helper()
	got, err := w.c.Eval(w.t.Context(), text, []string{"{primacy}:server"}, append([]any{"PUBLISH"}, args...)...).Slice()
	if err != nil {
		w.t.Fatal(err)
	}
	return got
}

// told has each token as the number of its drawing, so that two servers can be compared.
func (w *way) told(text string) string {
	for i, tok := range w.tokens {
		text = strings.ReplaceAll(text, tok, fmt.Sprint("#", i))
	}
	return text
}

// enter claims, and tells the answer.
func (w *way) enter(epoch, lease, name, id string, n, settled int, value string) string {
	return w.entered(w.run(w.claim, lease, epoch, settled, 1, name, "", "0", n, id, value, 0))
}

// entered tells the answer to what enters a claim.
func (w *way) entered(got reply) string {
	if tok := got.str(3); got.str(0) == "OK" && !slices.Contains(w.tokens, tok) {
		w.tokens = append(w.tokens, tok)
	}
	ms := got.num(5) > 0
	return w.told(fmt.Sprint(got.str(0), got.str(2), got.str(3), got.str(4), ms))
}

// state tells all that is kept and what was pushed, but for revisions: each must be larger than the
// one before wherever something has changed.
func (w *way) state(leases, names []string) string {
	ctx, b := w.t.Context(), "{primacy}:"
	var all []string
	for _, name := range names {
		all = append(all, "line "+name, fmt.Sprint(w.c.ZRange(ctx, b+"line:"+name, 0, -1).Val()))
		meta := w.c.HGetAll(ctx, b+"meta:"+name).Val()
		if len(meta) > 0 && (w.c.PTTL(ctx, b+"meta:"+name).Val() < 0 || w.c.PTTL(ctx, b+"line:"+name).Val() < 0) {
			all = append(all, "never vanishes")
		}
		for _, f := range slices.Sorted(maps.Keys(meta)) {
			if f == "h" || f[0] == 'v' || f == "kn" && meta[f] != "0" {
				all = append(all, f+"="+meta[f])
			}
		}
	}
	all = append(all, fmt.Sprint(w.c.ZRange(ctx, b+"names", 0, -1).Val()))
	for _, id := range leases {
		l := w.c.HGetAll(ctx, b+"lease:"+id).Val()
		for _, f := range slices.Sorted(maps.Keys(l)) {
			if f[0] == 's' || f == "w" || f == "p" {
				all = append(all, f+"="+l[f])
			}
		}
		all = append(all, fmt.Sprint(w.c.ZRange(ctx, b+"spent:"+id, 0, -1).Val()))
	}
	return w.told(strings.Join(all, "\n"))
}

// pushed tells what was published since the last call.
func (w *way) pushed() string {
	mark := fmt.Sprint(rand.Uint64())
	w.c.Publish(w.t.Context(), "mark", mark)
	var all []string
	for {
		msg, err := w.pushes.ReceiveMessage(w.t.Context())
		if err != nil {
			w.t.Fatal(err)
		}
		if msg.Payload == mark {
			return w.told(strings.Join(all, "\n"))
		}
		all = append(all, msg.Channel+" "+msg.Payload)
	}
}

// looked reads the line's revision, which must have grown where something was pushed.
func (w *way) looked(name string, changed bool) {
	w.t.Helper()
	r := w.run(linesScript.text(), name).list(2).num(0)
	w.pushed() // the look may have met leases that have ended
	if before := w.revisions[name]; changed && r <= before || r < before {
		w.t.Fatalf("the revision of %s went from %d to %d, changed %v", name, before, r, changed)
	}
	w.revisions[name] = r
}

// The scripts begin with a short way for what is frequent. Whatever happens, it must do what the
// long one does.
func TestTheShortWayDoesWhatTheLongOneDoes(t *testing.T) {
	servertest.Long(t, "race-library")
	t.Parallel()
	short, long := newWay(t, false), newWay(t, true)
	for seed := range uint64(12) {
		t.Logf("seed %d", seed)
		r := rand.New(rand.NewPCG(seed, 1))
		var leases []string
		names, last, settled := []string{fmt.Sprint("n", seed), fmt.Sprint("m", seed)}, map[string]int{}, map[string]int{}
		epoch, changed := map[*way]string{}, map[string]bool{}
		for i := range 4 {
			id := fmt.Sprintf("%014d%02d", seed, i)
			leases = append(leases, id)
			for _, w := range []*way{short, long} {
				epoch[w] = w.run(grantScript.text(), id, "owner", time.Hour.Milliseconds()/2, "channel"+id).str(1)
			}
		}
		for step := range 150 {
			lease, name := leases[r.IntN(4)], names[r.IntN(2)]
			act := r.IntN(20)
			if act > 1 && act < 11 && r.IntN(8) > 0 { // another claim, mostly of a new ID
				last[lease]++
			}
			n := max(last[lease], 1)
			if r.IntN(4) > 0 {
				settled[lease] = max(settled[lease], n-1)
			}
			do := func(w *way) string {
				ctx := t.Context()
				there := regexp.MustCompile(`^(\d+) 0 (\d+) (.*)$`)
				p := there.FindStringSubmatch(w.c.HGet(ctx, "{primacy}:lease:"+lease, "s:"+name).Val())
				q := there.FindStringSubmatch(w.c.HGet(ctx, "{primacy}:lease:"+lease, "sw:"+name).Val())
				switch {
				case act == 0: // it ends
					w.c.HSet(ctx, "{primacy}:lease:"+lease, "x", 1)
					return "ends"
				case act == 1: // it is granted, or renewed
					w.c.HSet(ctx, "{primacy}:lease:"+lease, "o", "owner", "t", "1800000", "x", time.Now().UnixMilli()+1790000, "c", "channel"+lease)
					return "lives"
				case act < 11:
					value := ""
					if act < 4 {
						value = "value"
					}
					return w.enter(epoch[w], lease, name, fmt.Sprint("id ", name, n), n, settled[lease], value)
				case act > 14 && p != nil:
					last[lease] += map[*way]int{short: 1}[w]
					return w.entered(w.run(w.exchange, lease, epoch[w], max(settled[lease], n), name, "", p[1], p[2], p[3], "", "", "", name, "w", last[lease],
						fmt.Sprint("id ", name, last[lease]), "other"))
				case act > 14 && q != nil:
					last[lease] += map[*way]int{short: 1}[w]
					return w.entered(w.run(w.exchange, lease, epoch[w], max(settled[lease], n), name, "w", q[1], q[2], q[3], "", "", "", name, "", last[lease],
						fmt.Sprint("id ", name, last[lease]), ""))
				case p == nil && q != nil:
					return fmt.Sprint("release w", w.run(w.release, lease, epoch[w], settled[lease], 1, name, "w", q[1], q[2], q[3], "", "", "").str(0))
				case p != nil:
					token := p[1]
					if act == 12 {
						token = "0"
					}
					got := w.run(w.release, lease, epoch[w], settled[lease]+step%2, 1, name, "", token, p[2], p[3], "", "", "")
					return fmt.Sprint("release", got.str(0))
				}
				return "nothing"
			}
			what := do(short)
			if other := do(long); other != what {
				t.Fatalf("step %d, act %d: the short way says %q, the long one %q", step, act, what, other)
			}
			a, b := short.pushed(), long.pushed()
			if a != b {
				t.Fatalf("step %d, act %d: the short way pushes\n%s\nthe long one\n%s", step, act, a, b)
			}
			if a, b := short.state(leases, names), long.state(leases, names); a != b {
				t.Fatalf("step %d, act %d: the short way leaves\n%s\nthe long one\n%s", step, act, a, b)
			}
			changed[name] = changed[name] || strings.Contains(a, "on:"+name)
			if r.IntN(4) == 0 { // seldom: it removes what has ended
				for _, w := range []*way{short, long} {
					w.looked(name, changed[name])
				}
				changed[name] = false
			}
		}
	}
}

// A line that nobody met any more vanishes by itself: who saw it last is told all the same that it
// is empty.
func TestTheRevisionOfALineThatVanished(t *testing.T) {
	t.Parallel()
	w := newWay(t, false)
	epoch := w.granted("a", "b")
	w.enter(epoch, "a", "n", "1", 1, 0, "")
	w.enter(epoch, "b", "n", "2", 1, 0, "")
	time.Sleep(2 * time.Millisecond)
	w.give(epoch, "a", "n", 1) // the line's revision is larger than the count now
	// Its last change was as long ago as that of one that vanishes: all numbers are those of two
	// days before.
	ctx, old := t.Context(), int64(48*time.Hour/time.Millisecond*64)
	before := w.run(linesScript.text(), "n").list(2).num(0) - old
	n, err := w.c.HGet(ctx, "{primacy}:server", "n").Int64()
	if err != nil {
		t.Fatal(err)
	}
	w.c.HSet(ctx, "{primacy}:server", "n", n-old)
	w.c.Del(ctx, "{primacy}:line:n", "{primacy}:meta:n")
	if after := w.run(linesScript.text(), "n").list(2).num(0); after <= before || after%2 != 0 {
		t.Errorf("the revision went from %d to %d, want a larger one, and even", before, after)
	}
}

// granted has leases granted, and returns the history they are of.
func (w *way) granted(leases ...string) (epoch string) {
	for _, id := range leases {
		epoch = w.run(grantScript.text(), id, "owner", 600000, "channel").str(1)
	}
	return epoch
}

// give gives up a claim that is known by its token, as the lease has it.
func (w *way) give(epoch, lease, name string, settled int) {
	w.t.Helper()
	p := strings.SplitN(w.c.HGet(w.t.Context(), "{primacy}:lease:"+lease, "s:"+name).Val(), " ", 4)
	if len(p) < 4 {
		w.t.Fatalf("the lease %s has no claim on %s", lease, name)
	}
	if got := w.run(w.release, lease, epoch, settled, 1, name, "", p[0], p[2], p[3], "", "", ""); got.str(0) != "OK" {
		w.t.Fatalf("release: %q", got)
	}
}

// A failover: {p}:server has only the count that the history began with, and a line that was there
// before is shown with the revision after it. Each change of that line has a larger one, or whoever
// observes it would miss the change.
func TestTheFirstChangeOfALineAfterAFailoverIsSeen(t *testing.T) {
	t.Parallel()
	for what, do := range map[string]struct {
		calm   bool // in the hold-off
		change func(w *way, epoch string)
	}{
		"an announcement": {true, func(w *way, epoch string) {
			token, _, _ := strings.Cut(w.c.HGet(w.t.Context(), "{primacy}:lease:a", "s:n").Val(), " ")
			w.run(updateScript.text(), "a", epoch, 1, "n", "", token, "1", "value")
		}},
		"a hand-over": {false, func(w *way, epoch string) { w.give(epoch, "a", "n", 1) }},
		"its end": {false, func(w *way, epoch string) {
			w.give(epoch, "b", "n", 1)
			w.looked("n", true)
			w.give(epoch, "a", "n", 1)
		}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			w := newWay(t, false)
			before := w.granted("a", "b")
			w.enter(before, "a", "n", "1", 1, 0, "")
			w.enter(before, "b", "n", "2", 1, 0, "")
			w.c.HSet(t.Context(), "{primacy}:server", "id", strings.Repeat("0", 40), "run", "another")
			epoch := w.granted("c") // notices it, and has the hold-off begin
			if !do.calm {
				w.c.HSet(t.Context(), "{primacy}:server", "calm", 0, "since", 0)
			}
			w.looked("n", true)
			do.change(w, epoch)
			w.looked("n", true)
		})
	}
}

// A line whose hash was evicted has a holder all the same. Who comes next waits behind it.
func TestALineWithoutItsHashHasAHolder(t *testing.T) {
	t.Parallel()
	w := newWay(t, false)
	epoch := w.granted("a", "b")
	w.enter(epoch, "a", "n", "1", 1, 0, "")
	w.c.Del(t.Context(), "{primacy}:meta:n")
	if got := w.run(w.claim, "b", epoch, 0, 1, "n", "", "0", 1, "2", "", 0); got.str(0) != "OK" || got.num(4) != 0 {
		t.Errorf("the next claim: %q, want it to wait", got)
	}
}

// A claim is given up while the call of an earlier one is under way. It may not enter any more.
func TestAClaimGivenUpBeforeAnEarlierOneDoesNotEnter(t *testing.T) {
	t.Parallel()
	short, long := newWay(t, false), newWay(t, true)
	for what, w := range map[string]*way{"short": short, "long": long} {
		epoch := w.granted("a")
		w.enter(epoch, "a", "n", "2", 2, 0, "")
		w.give(epoch, "a", "n", 0)
		if got := w.enter(epoch, "a", "n", "2", 2, 0, ""); !strings.HasPrefix(got, "GONE") {
			t.Errorf("a late claim by the %s way: %q, want GONE", what, got)
		}
	}
}

// What a lone lock and unlock ask the server for: each call takes it 1 or 2 µs.
func TestALoneLockAsksLittle(t *testing.T) {
	t.Parallel()
	w := newWay(t, false)
	epoch, ctx := w.granted("a"), t.Context()
	asked := func(do func()) string {
		w.c.ConfigResetStat(ctx)
		do()
		var all []string
		stats := w.c.Info(ctx, "commandstats").Val()
		for _, m := range regexp.MustCompile(`cmdstat_([a-z]+):calls=(\d+)`).FindAllStringSubmatch(stats, -1) {
			if m[1] != "eval" && m[1] != "config" {
				all = append(all, m[2]+" "+m[1])
			}
		}
		slices.Sort(all)
		return strings.Join(all, ", ")
	}
	for n := 1; n < 3; n++ {
		const claim = "1 exists, 1 info, 1 publish, 1 time, 2 hmget, 2 zadd, 3 hset, 3 pexpireat"
		if got := asked(func() { w.enter(epoch, "a", "n", fmt.Sprint(n), n, n-1, "") }); got != claim {
			t.Errorf("claim %d asks %s", n, got)
		}
		// One of the hget is the test's own.
		const release = "1 del, 1 hdel, 1 hset, 1 info, 1 publish, 1 time, 1 zrange, 1 zrem, 2 hget, 2 hmget"
		if got := asked(func() { w.give(epoch, "a", "n", n) }); got != release {
			t.Errorf("release %d asks %s", n, got)
		}
	}
}
