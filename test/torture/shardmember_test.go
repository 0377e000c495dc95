//go:build linux

package torture

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/open"
	"github.com/primacy-go/primacy/shards"
)

// The environment of a helper that is a member of a group of shards.
const (
	shardGroup    = "torture-shards"
	shardCount    = 256
	shardIDEnv    = "TORTURE_SHARD_ID"
	shardFileEnv  = "TORTURE_SHARD_FILE"
	shardTTLEnv   = "TORTURE_SHARD_TTL"
	shardActEvery = 20 * time.Millisecond
)

// shardMemberMain is a member until SIGTERM. It writes what it owned, by the boot clock read before
// each question:
//
//	AT own SHARD:TOKEN …   each Check said yes, of all that it owns
//	AT same                the same again
//	AT one SHARD TOKEN     the Check of that one: when its handler began, and before it returned
//	AT moved SHARD TOKEN   it was asked to hand over
//	AT lost SHARD TOKEN    the lease was not renewed in time
func shardMemberMain() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	ttl, err := time.ParseDuration(os.Getenv(shardTTLEnv))
	if err != nil {
		return err
	}
	f, err := appendTo(os.Getenv(shardFileEnv))
	if err != nil {
		return err
	}
	store, err := open.Open(ctx, os.Getenv(storeEnv))
	if err != nil {
		return err
	}
	defer store.Close()
	// On a machine with too little time for all a handler may outlive its right: it asks before
	// each act, and a process that ended itself would be a crash that nobody has planned.
	words, err := appendTo(os.Getenv(shardFileEnv) + ".log")
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(words, nil))
	s, err := primacy.NewSession(store,
		&primacy.Options{ID: os.Getenv(shardIDEnv), TTL: ttl, Overrun: primacy.OverrunWait, Logger: log})
	if err != nil {
		return err
	}
	// Events come each few seconds: with a cooldown of a minute all shards of a member may rest.
	g, err := shards.New(s, shardGroup, shardCount, &shards.Options{Cooldown: 2 * time.Second, Logger: log})
	if err != nil {
		return err
	}
	m := newShardMember(f)
	go m.act(context.WithoutCancel(ctx))
	err = g.Run(ctx, m.own)
	return errors.Join(err, s.Close(context.WithoutCancel(ctx)))
}

type shardMember struct {
	mu    sync.Mutex
	f     *os.File
	owned map[int]*primacy.Term
	last  string // the shards of the last line; at first unlike any, for the file may have lines of an earlier process
}

func newShardMember(f *os.File) *shardMember {
	return &shardMember{f: f, owned: map[int]*primacy.Term{}, last: "none yet"}
}

// own is the handler. It takes up to 30 ms to stop.
func (m *shardMember) own(ctx context.Context, s *shards.Shard) error {
	m.mu.Lock()
	m.owned[s.Number] = s.Term
	m.one(s)
	m.mu.Unlock()
	<-ctx.Done()
	for word, why := range map[string]error{"moved": primacy.ErrTransferred, "lost": primacy.ErrExpired} {
		if errors.Is(context.Cause(ctx), why) {
			m.mu.Lock()
			fmt.Fprintf(m.f, "%d %s %d %d\n", boottime.Now(), word, s.Number, s.Term.Token())
			m.mu.Unlock()
		}
	}
	time.Sleep(rand.N(30 * time.Millisecond))
	m.mu.Lock()
	defer m.mu.Unlock()
	m.one(s)
	delete(m.owned, s.Number)
	return ctx.Err()
}

// one records an act of one shard, if its owner may act.
func (m *shardMember) one(s *shards.Shard) {
	if at := boottime.Now(); s.Term.Check() == nil {
		fmt.Fprintf(m.f, "%d one %d %d\n", at, s.Number, s.Term.Token())
	}
}

// act records an act of each shard that this member owns, again and again.
func (m *shardMember) act(ctx context.Context) {
	for range time.Tick(shardActEvery) {
		m.actOnce()
		if ctx.Err() != nil {
			return
		}
	}
}

func (m *shardMember) actOnce() {
	m.mu.Lock()
	defer m.mu.Unlock()
	at, text := boottime.Now(), ""
	for _, i := range slices.Sorted(maps.Keys(m.owned)) {
		if t := m.owned[i]; t.Check() == nil {
			text += fmt.Sprintf(" %d:%d", i, t.Token())
		}
	}
	if text == m.last {
		fmt.Fprintf(m.f, "%d same\n", at)
	} else {
		fmt.Fprintf(m.f, "%d own%s\n", at, text)
	}
	m.last = text
}

// TestTheNextProcessDoesNotActForTheOneBefore: a member that was killed and started again writes
// into the same file, and owns nothing at first. What the process before it owned must not count as
// its own: seed 3961161 had 28 overlaps by that.
func TestTheNextProcessDoesNotActForTheOneBefore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m1")
	before := boottime.Now() - time.Minute
	text := fmt.Sprintf("%d own 3:17\n%d same\n", before, before+shardActEvery)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := appendTo(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	m := newShardMember(file)
	m.actOnce()
	m.actOnce()
	f := &shardFleet{T: t, files: []string{path}}
	if terms := f.readShardRecords().terms; len(terms) != 1 || terms[0].To != before+shardActEvery {
		t.Errorf("the record shows the terms %+v, want one that ended a minute ago", terms)
	}
}
