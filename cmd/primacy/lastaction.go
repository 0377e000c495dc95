package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/embedded"
	"github.com/primacy-go/primacy/cmd/internal/supervise"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/etcdstore"
	"github.com/primacy-go/primacy/open"
)

// lastAction is what the guardian of a command needs to end the lease of a supervisor that died. A
// password may be in it.
type lastAction struct {
	Store   string   `json:"store"` // as --store has it
	Lease   string   `json:"lease"`
	Dir     string   `json:"dir"` // files that Store names are relative to it
	Env     [][]byte `json:"env"` // ours, which need not be UTF-8: the guardian has none
	Message string   `json:"message"`

	Name  string        `json:"name,omitempty"` // of the election, for its history; empty for a lock
	Token primacy.Token `json:"token"`
	ID    string        `json:"id"`
}

// lastAction returns what the guardian of a command or hook is to do if this process is killed, nil
// where the store cannot. Nothing for a shard: its lease is that of all shards of this process, and
// the commands of the others may still run. These shards go to others when the lease has run out.
func (r *runner) lastAction(term *primacy.Term) *supervise.LastAction {
	if r.shard != nil {
		return nil
	}
	w := lastAction{}
	if !r.lock {
		w.Name, w.Token, w.ID = r.name, term.Token(), r.session.ID()
	}
	if !r.quiet {
		w.Message = fmt.Sprintf("primacy: the supervisor is gone; its command was ended and %s %s given up\n",
			r.right, clean(r.name))
	}
	w.Lease = term.Lease()
	return r.endLease(w, term.TTL())
}

// endLease adds to w what the guardian needs to reach the store. After ttl the lease is over by
// itself.
func (a *app) endLease(w lastAction, ttl time.Duration) *supervise.LastAction {
	w.Store = a.store
	if w.Store == "" || strings.HasPrefix(w.Store, embeddedScheme) {
		dir, err := a.embeddedDir() // the default depends on the environment
		if err != nil {
			return nil
		}
		w.Store = embeddedScheme + dir
	}
	w.Dir, _ = os.Getwd()
	for _, kv := range os.Environ() { // proxies, PG*, KUBECONFIG, and whatever a plugin of that needs
		w.Env = append(w.Env, []byte(kv))
	}
	text, err := json.Marshal(w)
	if err != nil {
		return nil
	}
	return &supervise.LastAction{Payload: text, Limit: ttl}
}

// executeLastAction runs in the guardian of a dead supervisor, when nothing of the command is left.
// Nobody hears of a failure: then the lease runs out by itself.
func executeLastAction(ctx context.Context, text []byte, messages io.Writer) {
	var w lastAction
	if json.Unmarshal(text, &w) != nil {
		return
	}
	for _, kv := range w.Env {
		name, v, _ := strings.Cut(string(kv), "=")
		_ = os.Setenv(name, v)
	}
	_ = os.Chdir(w.Dir)
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		err := w.carryOut(ctx)
		if err == nil {
			_, _ = io.WriteString(messages, w.Message)
		}
		if err == nil || errors.Is(err, driver.ErrRefused) || errors.Is(err, open.ErrURL) {
			return
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// carryOut is one try.
func (w lastAction) carryOut(ctx context.Context) error {
	st, done, err := w.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	w.record(ctx, st)
	return st.Revoke(ctx, w.Lease)
}

// recordLimit is how long the record may hold up the end of the lease.
const recordLimit = 500 * time.Millisecond

// record tells the history that the leader has died. Before the lease is ended: then it is told
// also where this is the last that the guardian does.
func (w lastAction) record(ctx context.Context, st driver.Store) {
	j, ok := st.(driver.Journal)
	if !ok || w.Name == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, recordLimit)
	defer cancel()
	name, r := primacy.RecordDeath(w.Name, w.Token, w.ID, time.Now(),
		"the supervisor was killed; its guardian ended the command")
	_, _, _ = j.Append(ctx, name, r, math.MaxInt32) // without it the history says that nobody said
}

// open opens the store as a client only: a guardian never hosts an embedded one.
func (w lastAction) open(ctx context.Context) (driver.Store, func(), error) {
	dir, ok := strings.CutPrefix(w.Store, embeddedScheme)
	if !ok {
		st, err := open.Open(ctx, w.Store)
		if err != nil {
			return nil, nil, err
		}
		return st, func() { _ = st.Close() }, nil
	}
	endpoint, done, err := embedded.Reach(dir)
	if err != nil {
		return nil, nil, err
	}
	st, err := etcdstore.Open(ctx, etcdstore.Config{Endpoints: []string{endpoint}})
	if err != nil {
		done()
		return nil, nil, err
	}
	return st, func() { _ = st.Close(); done() }, nil
}
