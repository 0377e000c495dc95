package patroni

import (
	"cmp"
	"context"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/primacy-go/primacy/etcdstore"
)

// Keys is how the mirror's keys are reached. *etcdstore.Raw is one.
type Keys interface {
	Beside(ctx context.Context, prefix string) ([]etcdstore.BesideKey, error)
	WriteBeside(ctx context.Context, claimKey string, token uint64, writes ...etcdstore.BesideWrite) (bool, error)
}

// cluster is the keys of a cluster, as they stand in the store.
type cluster struct {
	keys map[string]etcdstore.BesideKey // by name, without the prefix
	Config
}

func readCluster(ctx context.Context, keys Keys, c Config) (cluster, error) {
	all, err := keys.Beside(ctx, c.Dir)
	if err != nil {
		return cluster{}, err
	}
	out := cluster{keys: map[string]etcdstore.BesideKey{}, Config: c}
	for _, k := range all {
		out.keys[strings.TrimPrefix(k.Key, c.Dir)] = k
	}
	return out, nil
}

func (c cluster) value(name string) string { return string(c.keys[name].Value) }

// read decodes a key. What cannot be read is as if it were not there.
func (c cluster) read(name string, to any) { _ = json.Unmarshal(c.keys[name].Value, to) }

// memberKey is the value of members/NAME.
type memberKey struct {
	ConnURL          string         `json:"conn_url"`
	APIURL           string         `json:"api_url,omitempty"`
	State            string         `json:"state"`
	Role             string         `json:"role"`
	Version          string         `json:"version"`
	Tags             map[string]any `json:"tags,omitempty"`
	PendingRestart   bool           `json:"pending_restart,omitempty"`
	ScheduledRestart map[string]any `json:"scheduled_restart,omitempty"`
	Location         *core64        `json:"xlog_location,omitempty"`
	Received         *core64        `json:"receive_lsn,omitempty"`
	Replayed         *core64        `json:"replay_lsn,omitempty"`
	ReplicationState string         `json:"replication_state,omitempty"`
	Timeline         uint32         `json:"timeline,omitempty"`
	Pause            bool           `json:"pause,omitempty"`
}

// syncKey is the value of sync.
type syncKey struct {
	Leader  *string `json:"leader"`
	Standby *string `json:"sync_standby"`
	Quorum  int     `json:"quorum"`
}

func (s syncKey) has(name string) bool {
	return s.Standby != nil && slices.Contains(strings.Split(*s.Standby, ","), name)
}

// statusKey is the value of status.
type statusKey struct {
	Optime core64            `json:"optime"`
	Slots  map[string]core64 `json:"slots,omitempty"`
}

// shownMember is one of /cluster.
type shownMember struct {
	Name           string         `json:"name"`
	Role           string         `json:"role"`
	State          string         `json:"state"`
	APIURL         string         `json:"api_url,omitempty"`
	Host           string         `json:"host,omitempty"`
	Port           int            `json:"port,omitempty"`
	Timeline       uint32         `json:"timeline,omitempty"`
	PendingRestart bool           `json:"pending_restart,omitempty"`
	Restart        map[string]any `json:"scheduled_restart,omitempty"`
	Tags           map[string]any `json:"tags,omitempty"`
	Lag            any            `json:"lag,omitempty"` // of who is not the leader: bytes, or "unknown"
}

// shownCluster is /cluster.
type shownCluster struct {
	Members   []shownMember   `json:"members"`
	Pause     bool            `json:"pause,omitempty"`
	Scope     string          `json:"scope"`
	Scheduled *shownScheduled `json:"scheduled_switchover,omitempty"`
}

type shownScheduled struct {
	At   string `json:"at"`
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
}

// paused says whether the cluster is paused, as patronictl sees it.
func (c cluster) paused() bool {
	var dynamic struct {
		Pause bool `json:"pause"`
	}
	c.read("config", &dynamic)
	return dynamic.Pause
}

func (c cluster) show() shownCluster {
	leader := c.value("leader")
	var end statusKey
	var sync syncKey
	c.read("status", &end)
	c.read("sync", &sync)
	out := shownCluster{Members: []shownMember{}, Pause: c.paused(), Scope: c.Scope}
	for key := range c.keys {
		name, ok := strings.CutPrefix(key, "members/")
		if !ok {
			continue
		}
		var m memberKey
		c.read(key, &m)
		x := shownMember{Name: name, Role: "replica", State: m.State, APIURL: m.APIURL, Timeline: m.Timeline,
			PendingRestart: m.PendingRestart, Restart: m.ScheduledRestart, Tags: m.Tags}
		if u, err := url.Parse(m.ConnURL); err == nil {
			x.Host = u.Hostname()
			x.Port, _ = strconv.Atoi(u.Port())
		}
		switch {
		case name == leader:
			x.Role = "leader"
		case sync.has(name):
			x.Role = "sync_standby"
		}
		if name != leader {
			x.State = cmp.Or(m.ReplicationState, m.State)
			if x.Lag = "unknown"; m.Location != nil {
				x.Lag = max(end.Optime, *m.Location) - *m.Location
			}
		}
		out.Members = append(out.Members, x)
	}
	slices.SortFunc(out.Members, func(a, b shownMember) int { return strings.Compare(a.Name, b.Name) })
	if f, err := parseFailover(c.keys["failover"].Value); err == nil && !f.At.IsZero() {
		out.Scheduled = &shownScheduled{f.At.Format("2006-01-02T15:04:05-07:00"), f.Leader, f.Candidate}
	}
	return out
}

// history is the lines of the key history, each as Patroni wrote it.
func (c cluster) history() []json.RawMessage {
	lines := []json.RawMessage{}
	c.read("history", &lines)
	return lines
}
