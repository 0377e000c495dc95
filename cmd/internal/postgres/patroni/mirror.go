package patroni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/server"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/etcdstore"
	"github.com/primacy-go/primacy/internal/boottime"
)

// Store is what the mirror needs of the election's store. *etcdstore.Store is one.
type Store interface {
	Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error)
	ClaimKey(ctx context.Context, name string, token uint64) (string, error)
}

// Mirror keeps Patroni's keys of one member, and while it is the primary those of the cluster.
type Mirror struct {
	Config
	Member   Member
	Store    Store
	Keys     Keys
	Election string // whose terms decide who is the primary
	Verbs    Verbs
	Log      *slog.Logger

	lease   driver.Lease // that ends the member's key; nil: none yet
	renewed time.Duration

	claimOf  uint64 // the token of claimKey
	claimKey string
	wrote    bool // the key leader may name this member
	strange  bool // the keys are another cluster's; it was said
	failing  bool // the store did not answer; it was said
}

// memberTTL is how long the key of a member whose agent is gone stays.
func memberTTL(ttl time.Duration) time.Duration { return max(2*ttl, 5*time.Second) }

// apart is for how long the key leader names nobody between two members at least: who moves an
// address by it takes it away from the one before the other has it.
const apart = 200 * time.Millisecond

// Run keeps the keys until ctx ends. Then it removes those that name this member.
func (m *Mirror) Run(ctx context.Context) {
	for ctx.Err() == nil {
		v := look(m.Member)
		if v.At == 0 { // it has not begun
			pause(ctx, nil, time.Second/10)
			continue
		}
		_, scheduled := m.Restarts.kept() // before it is written
		limit, cancel := context.WithTimeout(ctx, max(v.TTL, storeLimit))
		err := m.once(limit, v)
		cancel()
		if err != nil && ctx.Err() == nil && !m.failing {
			m.Log.Warn("Patroni's keys are not written", "err", oneLine(err))
		}
		m.failing = err != nil
		pause(ctx, nil, time.Second/50) // changes come in swarms
		select {
		case <-time.After(v.LoopWait):
		case <-v.Changed():
		case <-scheduled:
		case <-ctx.Done():
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = m.leave(last)
	if m.lease != nil {
		_ = m.lease.Close(last) // else it runs out
	}
}

func pause(ctx context.Context, wake <-chan struct{}, d time.Duration) {
	select {
	case <-time.After(d):
	case <-wake:
	case <-ctx.Done():
	}
}

// once brings the keys up to date.
func (m *Mirror) once(ctx context.Context, v view) error {
	if !v.Holds() || !v.Server.Primary { // first: nothing else may keep it waiting
		if err := m.leave(ctx); err != nil {
			return err
		}
	}
	if v.Record == nil { // another manager may keep these keys until there is one
		return nil
	}
	now, err := readCluster(ctx, m.Keys, m.Config)
	if err != nil {
		return err
	}
	if m.others(now, v) {
		return nil
	}
	if err := m.touch(ctx, v); err != nil {
		return err
	}
	if v.Holds() {
		if err := m.request(ctx, now, v); err != nil {
			return err
		}
	}
	if !v.leads || v.Record == nil {
		return nil
	}
	return m.lead(ctx, now, v)
}

// Guarded is what the key initialize says while primacy keeps a database. No database has that
// system identifier, so a Patroni that starts beside primacy, for its machine was off, refuses to
// run ("system ID mismatch") before it touches its server. With the true one it would elect a
// second primary where ours has just lost its term.
func Guarded(systemID string) string { return "0" + systemID }

// others says whether the keys are those of another database system: of a Patroni that keeps a
// cluster of the same name. To write over its leader would take its lock from it.
func (m *Mirror) others(now cluster, v view) bool {
	is := now.value("initialize")
	strange := v.Record != nil && is != "" && is != v.Record.SystemID && is != Guarded(v.Record.SystemID)
	if strange && !m.strange {
		m.Log.Error("Patroni's keys are those of another cluster, and are left alone: give this one another name or "+
			"another namespace", "keys", m.Dir, "system", is, "own", v.Record.SystemID)
	}
	m.strange = strange
	return strange
}

// touch writes the member's own key, under a lease of its own: it also stands while the member does
// not, as in a pause.
func (m *Mirror) touch(ctx context.Context, v view) error {
	err := m.touchOnce(ctx, v)
	if !errors.Is(err, driver.ErrGone) {
		return err
	}
	_ = m.lease.Close(ctx) // it has ended: the process was frozen, or etcd away
	m.lease = nil
	return m.touchOnce(ctx, v)
}

func (m *Mirror) touchOnce(ctx context.Context, v view) (err error) {
	if m.lease == nil {
		began := boottime.Now()
		if m.lease, err = m.Store.Grant(ctx, m.Name, memberTTL(v.TTL)); err != nil {
			m.lease = nil
			return err
		}
		m.renewed = began
	}
	if now := boottime.Now(); now-m.renewed > m.lease.TTL()/3 {
		if err := m.lease.Renew(ctx); err != nil {
			return err
		}
		m.renewed = now
	}
	value, _ := json.Marshal(m.memberKey(v))
	_, err = m.Keys.WriteBeside(ctx, "", 0, etcdstore.BesideWrite{Key: m.Dir + "members/" + m.Name, Value: value,
		Lease: m.lease.ID()})
	return err
}

func (m *Mirror) memberKey(v view) memberKey {
	k := memberKey{ConnURL: m.connURL(), APIURL: m.URL, State: v.state, Role: v.role, Version: Compatible,
		Tags: m.Tags, PendingRestart: v.pendingRestart(), Pause: v.paused(),
		ScheduledRestart: m.Restarts.shown()}
	if !v.running() {
		return k
	}
	k.Timeline = uint32(v.Position.Timeline)
	if v.Server.Primary {
		k.Location = number(v.written())
		return k
	}
	k.Location, k.Received, k.Replayed = number(v.received()), number(v.received()), number(v.replayed())
	k.ReplicationState = v.replication()
	return k
}

// leave removes the key leader, if it may name this member.
func (m *Mirror) leave(ctx context.Context) error {
	if !m.wrote {
		return nil
	}
	ok, err := m.Keys.WriteBeside(ctx, "", 0, etcdstore.BesideWrite{Key: m.Dir + "leader",
		Only: func(k etcdstore.BesideKey) bool { return string(k.Value) == m.Name }})
	if err != nil || !ok {
		return err
	}
	m.wrote = false
	return nil
}

// lead writes the keys of the cluster, under the claim of the term: none is written once that is
// over, and leader goes with its lease.
func (m *Mirror) lead(ctx context.Context, now cluster, v view) error {
	token := uint64(v.Term.Token())
	if m.claimOf != token {
		key, err := m.Store.ClaimKey(ctx, m.Election, token)
		if err != nil {
			return ended(err)
		}
		m.claimKey, m.claimOf = key, token
	}
	key := func(name string, value any) etcdstore.BesideWrite {
		text, _ := json.Marshal(value)
		return etcdstore.BesideWrite{Key: m.Dir + name, Value: text}
	}
	if is := now.value("leader"); is != "" && is != m.Name { // the former primary's mirror is late
		_, err := m.Keys.WriteBeside(ctx, m.claimKey, token, etcdstore.BesideWrite{Key: m.Dir + "leader"})
		if err != nil {
			return ended(err)
		}
		pause(ctx, nil, apart)
	}
	initialize := etcdstore.BesideWrite{Key: m.Dir + "initialize", Value: []byte(Guarded(v.Record.SystemID))}
	leader := etcdstore.BesideWrite{Key: m.Dir + "leader", Value: []byte(m.Name), Claim: true}
	m.wrote = true
	_, err := m.Keys.WriteBeside(ctx, m.claimKey, token, initialize, leader, key("status", m.statusKey(v)),
		key("sync", m.syncKey(v)), key("history", historyKey(*v.Record, now, time.Now())))
	return ended(err)
}

// ended is nil where the term is over: the member's next look says so.
func ended(err error) error {
	if errors.Is(err, driver.ErrGone) {
		return nil
	}
	return err
}

func (m *Mirror) statusKey(v view) statusKey {
	s := statusKey{Optime: core64(v.written()), Slots: map[string]core64{}}
	for _, x := range v.Server.Senders {
		s.Slots[server.SlotName(x.Name)] = core64(x.Flushed)
	}
	return s
}

func (m *Mirror) syncKey(v view) syncKey {
	var names []string
	for _, x := range v.Record.Voters {
		names = append(names, x.Name)
	}
	if v.Record.Durability == core.Async || len(names) == 0 {
		return syncKey{}
	}
	slices.Sort(names)
	all := strings.Join(names, ",")
	return syncKey{Leader: &m.Name, Standby: &all, Quorum: max(0, v.Record.Needed-1)}
}

// historyKey is a line for each timeline that has ended: its number, where it ended, why, when, and
// who was promoted. The record does not say when: that is noted when a line comes to those there.
// Of what the record does not know any more, or never knew, for Patroni kept the cluster then, what
// is there stays.
func historyKey(r core.Record, before cluster, now time.Time) [][]any {
	was := map[core.Timeline][]any{}
	lines := [][]any{}
	for _, raw := range before.history() {
		var line []any
		d := json.NewDecoder(bytes.NewReader(raw))
		d.UseNumber()
		if d.Decode(&line) != nil || len(line) == 0 {
			continue
		}
		n, err := strconv.ParseUint(fmt.Sprint(line[0]), 10, 32)
		if err != nil {
			continue
		}
		was[core.Timeline(n)] = line
		if len(r.Lineage) > 0 && core.Timeline(n) < r.Lineage[0].Timeline {
			lines = append(lines, line)
		}
	}
	for i, fork := range r.Lineage {
		if i == 0 {
			continue
		}
		ended := r.Lineage[i-1].Timeline
		line := []any{ended, core64(fork.From), "no recovery target specified", "", ""}
		began := func(p core.Promoted) bool { return p.Timeline == fork.Timeline }
		_, known := before.keys["history"]
		switch old := was[ended]; {
		case len(old) == 5:
			copy(line[2:], old[2:])
		case known && fork.Timeline == r.Timeline:
			line[3] = now.UTC().Format("2006-01-02T15:04:05.000000-07:00")
		}
		if at := slices.IndexFunc(r.History, began); at >= 0 {
			line[2], line[4] = r.History[at].Ground, r.History[at].Member
		}
		lines = append(lines, line)
	}
	return lines
}

// request looks at what a tool has asked for. The key is removed before anything is done: it is
// done at most once.
func (m *Mirror) request(ctx context.Context, now cluster, v view) error {
	k := now.keys["failover"]
	f, err := parseFailover(k.Value)
	act, drop := f.obey(m.Name, v.leads, v.Phase == core.PhaseSurveying, time.Now())
	if err != nil {
		drop = oneLine(err)
	}
	if !act && drop == "" {
		return nil
	}
	same := false
	ok, err := m.Keys.WriteBeside(ctx, "", 0, etcdstore.BesideWrite{Key: m.Dir + "failover",
		Only: func(is etcdstore.BesideKey) bool {
			same = is.Version == k.Version
			return same
		}})
	if err != nil || !ok || !same {
		return err
	}
	if !act {
		m.Log.Warn("a request in Patroni's key failover was dropped", "request", string(k.Value), "why", drop)
		return nil
	}
	go func() { // the mirror goes on meanwhile
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), verbLimit)
		defer cancel()
		if _, err := m.Verbs.Switchover(ctx, f.Leader, f.Candidate); err != nil {
			m.Log.Warn("a request in Patroni's key failover was refused", "request", string(k.Value),
				"why", oneLine(err))
		}
	}()
	return nil
}
