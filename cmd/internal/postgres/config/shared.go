package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/near"
	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/server"
)

// Shared is what a document says.
type Shared struct {
	Durability core.Durability
	Acks       int
	MaxLag     core.LSN // see [core.Settings]
	DropAfter  time.Duration
	AloneAfter time.Duration
	Parameters map[string]string // of PostgreSQL, by names in lower case
	Pause      bool
}

// Defaults returns what an empty document says, but for the durability: there it is async, for so
// Patroni's users have it, and a new cluster of ours is born with quorum.
func Defaults() Shared {
	return Shared{Durability: core.Quorum, Acks: 1, MaxLag: 1 << 20, DropAfter: 3 * time.Second,
		AloneAfter: 10 * time.Second, Parameters: map[string]string{
			"wal_retrieve_retry_interval": "500ms", "wal_sender_timeout": "5s", "wal_receiver_timeout": "5s",
			"wal_receiver_status_interval": "1s"}}
}

// Settings returns what package core decides by.
func (s Shared) Settings() core.Settings {
	return core.Settings{Durability: s.Durability, Acks: s.Acks, DropAfter: s.DropAfter, AloneAfter: s.AloneAfter,
		MaxLag: s.MaxLag, Linger: 300 * time.Millisecond, StallAfter: 3 * time.Second,
		ReplayAtMost: 10 * time.Minute}
}

// First returns the document of a new cluster. Patroni before 4.0 takes the synchronous_mode quorum
// for off, and true is the same for us: so whoever goes back to it does not lose the durability.
func First(s Shared) Document {
	number := func(n int64) json.Number { return json.Number(strconv.FormatInt(n, 10)) }
	parameters := map[string]any{}
	for name, value := range s.Parameters {
		parameters[name] = value
	}
	d := Document{
		"synchronous_node_count":  number(int64(s.Acks)),
		"maximum_lag_on_failover": number(int64(s.MaxLag)),
		"postgresql": map[string]any{"use_slots": true, "use_pg_rewind": true,
			"parameters": parameters},
	}
	d = d.withDurability(s.Durability)
	usual := Defaults()
	for name, x := range map[string][2]time.Duration{"drop_after": {s.DropAfter, usual.DropAfter},
		"alone_after": {s.AloneAfter, usual.AloneAfter}} {
		if x[0] != x[1] {
			set(d, []string{"primacy", name}, x[0].String())
		}
	}
	return d
}

func (d Document) withDurability(x core.Durability) Document {
	next := d.Clone()
	next["synchronous_mode"], next["synchronous_mode_strict"] = x != core.Async, x == core.Quorum
	return next
}

// Assign is [Document.With] with what a person may write in place of Patroni's keys: durability,
// acks, and parameters.NAME.
func (d Document) Assign(key string, value any) (Document, error) {
	switch {
	case key == "durability" && value != nil:
		x := core.Durability(fmt.Sprint(value))
		if !slices.Contains([]core.Durability{core.Quorum, core.Available, core.Async}, x) {
			return nil, fmt.Errorf("durability = %q: use quorum, available or async", x)
		}
		return d.withDurability(x), nil
	case key == "durability":
		return nil, errors.New("durability cannot be removed: use quorum, available or async")
	case key == "acks":
		key = "synchronous_node_count"
	case strings.HasPrefix(key, "parameters."):
		key = "postgresql." + key
	}
	return d.With(key, value)
}

// ParseFor reads the value that a person has given for a key of [Document.Assign].
func ParseFor(key string, text []byte) (any, error) {
	if strings.HasPrefix(strings.TrimPrefix(key, "postgresql."), "parameters.") {
		return ParseParameter(text)
	}
	return ParseValue(text)
}

// own is our own table in the document.
const own = "primacy"

// Read returns what the document says. told are the keys that count for nothing, each with the
// reason. The error is one line; then nothing of the document holds.
func (d Document) Read() (s Shared, told []string, err error) {
	r := reader{told: map[string]string{}}
	s = Defaults()
	r.durability(&s, d)
	s.Acks = int(r.number(d, "synchronous_node_count", int64(s.Acks), 1, 1000))
	s.MaxLag = core.LSN(r.number(d, "maximum_lag_on_failover", int64(s.MaxLag), 0, 1<<62))
	s.Pause = r.truth(d, "pause", false)
	ours := r.table(d, own, own)
	s.DropAfter = r.duration(ours, "drop_after", s.DropAfter)
	s.AloneAfter = r.duration(ours, "alone_after", s.AloneAfter)
	postgres := r.table(d, "postgresql", "postgresql")
	r.parameters(&s, r.table(postgres, "parameters", "postgresql.parameters"))
	r.refuseStandbyCluster(d)
	r.tell("", d, topKeys)
	r.tell("postgresql.", postgres, postgresKeys)
	r.tell("primacy.", ours, map[string]string{"drop_after": "", "alone_after": ""})
	for _, key := range slices.Sorted(maps.Keys(r.told)) {
		told = append(told, key+": "+r.told[key])
	}
	return s, told, r.err
}

// Validate says why a document would be refused, or nil.
func (d Document) Validate() error {
	_, _, err := d.Read()
	return err
}

// reader keeps the first error.
type reader struct {
	err  error
	told map[string]string
}

func (r *reader) wrong(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
}

func (r *reader) durability(s *Shared, d Document) {
	mode, strict := d["synchronous_mode"], r.truth(d, "synchronous_mode_strict", false)
	sync, ok := truth(mode)
	if text, isText := mode.(string); isText && strings.EqualFold(text, "quorum") {
		sync, ok = true, true
	}
	switch {
	case mode != nil && !ok:
		// Patroni takes any other word for off: a slip of the pen must not cost acknowledged rows.
		r.wrong("synchronous_mode = %s: use on, off or quorum", show(mode))
	case !sync:
		s.Durability = core.Async
	case strict:
		s.Durability = core.Quorum
	default:
		s.Durability = core.Available
	}
}

// truth reads a switch as Patroni does. ok is false for what is none.
func truth(v any) (is, ok bool) {
	switch strings.ToLower(fmt.Sprint(v)) {
	case "on", "true", "yes", "1":
		return true, true
	case "off", "false", "no", "0":
		return false, true
	}
	return false, false
}

func show(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	if len(text) > 60 {
		text = append(text[:60:60], "…"...)
	}
	return string(text)
}

func (r *reader) truth(in map[string]any, key string, usual bool) bool {
	v := in[key]
	if v == nil {
		return usual
	}
	is, ok := truth(v)
	if !ok {
		r.wrong("%s = %s: use true or false", key, show(v))
	}
	return is
}

func (r *reader) number(in map[string]any, key string, usual, least, most int64) int64 {
	v := in[key]
	if v == nil {
		return usual
	}
	n, err := strconv.ParseInt(strings.TrimSpace(fmt.Sprint(v)), 10, 64)
	switch {
	case err != nil:
		r.wrong("%s = %s: give a whole number", key, show(v))
	case n < least || n > most:
		r.wrong("%s = %d: give a number from %d to %d", key, n, least, most)
	}
	return n
}

func (r *reader) duration(in map[string]any, key string, usual time.Duration) time.Duration {
	v := in[key]
	if v == nil {
		return usual
	}
	n, err := time.ParseDuration(fmt.Sprint(v))
	if err != nil || n <= 0 {
		r.wrong(`%s.%s = %s: give a duration, such as "3s"`, own, key, show(v))
	}
	return n
}

func (r *reader) table(in map[string]any, key, path string) map[string]any {
	v := in[key]
	if v == nil {
		return nil
	}
	t, ok := v.(map[string]any)
	if !ok {
		r.wrong("%s = %s: give an object", path, show(v))
	}
	return t
}

// parameters takes PostgreSQL's parameters in.
func (r *reader) parameters(s *Shared, in map[string]any) {
	all := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(in)) {
		switch v := in[name].(type) {
		case nil:
		case bool:
			all[name] = map[bool]string{true: "on", false: "off"}[v]
		case string, json.Number, int, int64, uint64, float64:
			all[name] = fmt.Sprint(v)
		default:
			r.wrong("postgresql.parameters.%s = %s: give a text, a number, true or false", name, show(v))
		}
	}
	lower, err := server.Parameters(all)
	if err != nil {
		r.wrong("postgresql.%w", err)
	}
	// PostgreSQL 12 and before counted files of 16 MB. Patroni takes both.
	if n, err := strconv.Atoi(lower["wal_keep_segments"]); err == nil {
		if lower["wal_keep_size"] == "" {
			lower["wal_keep_size"] = fmt.Sprintf("%dMB", n*16)
		}
		delete(lower, "wal_keep_segments")
	}
	for name, value := range lower {
		s.Parameters[name] = value
	}
}

// refuseStandbyCluster: a cluster that follows another one has no primary.
func (r *reader) refuseStandbyCluster(d Document) {
	c, _ := d["standby_cluster"].(map[string]any)
	for _, key := range []string{"host", "port", "restore_command"} {
		if v := c[key]; v != nil && v != "" {
			r.wrong("standby_cluster.%s = %s: primacy keeps no standby cluster", key, show(v))
		}
	}
}

// Reasons why a key counts for nothing.
const (
	perMember = "each member's own file says it"
	unused    = "primacy has no such setting"
	noSlots   = "primacy keeps only the slots of members"
	ownHBA    = "each member has its own files"
	ownSource = "primacy sets it"
)

// topKeys are those that are known. One with a reason counts for nothing.
var topKeys = map[string]string{
	"synchronous_mode": "", "synchronous_mode_strict": "", "synchronous_node_count": "",
	"maximum_lag_on_failover": "", "pause": "", "postgresql": "", own: "", "standby_cluster": "",
	"ttl": perMember, "loop_wait": perMember, "retry_timeout": perMember,
	"primary_race_backoff": unused, "maximum_lag_on_syncnode": unused, "max_timelines_history": unused,
	"primary_start_timeout": unused, "primary_stop_timeout": unused, "master_start_timeout": unused,
	"master_stop_timeout": unused, "check_timeline": unused, "failsafe_mode": unused,
	"member_slots_ttl": unused, "slots": noSlots, "permanent_slots": noSlots, "permanent_replication_slots": noSlots,
	"ignore_slots": noSlots,
}

var postgresKeys = map[string]string{
	"parameters": "", "use_slots": "it always uses slots", "use_pg_rewind": "it always uses pg_rewind",
	"parameters_primary": unused, "parameters_replica": unused, "parameters_standby_leader": unused,
	"pg_hba": ownHBA, "pg_hba_primary": ownHBA, "pg_hba_replica": ownHBA, "pg_hba_standby_leader": ownHBA,
	"pg_ident": ownHBA, "pg_ident_primary": ownHBA, "pg_ident_replica": ownHBA, "pg_ident_standby_leader": ownHBA,
	"recovery_conf": ownSource, "create_replica_methods": unused, "basebackup": unused,
	"remove_data_directory_on_rewind_failure": unused, "remove_data_directory_on_diverged_timelines": unused,
	"callbacks": unused, "before_stop": unused, "pre_promote": unused, "pg_ctl_timeout": unused,
	"authentication": perMember,
	"listen":         perMember, "connect_address": perMember, "data_dir": perMember, "bin_dir": perMember,
	"config_dir": perMember, "pgpass": perMember, "proxy_address": unused, "use_unix_socket": ownSource,
	"use_unix_socket_repl": ownSource, "krbsrvname": unused, "database": unused, "custom_conf": unused,
}

// tell notes which keys count for nothing, where they say anything else than what is so anyway.
func (r *reader) tell(prefix string, in map[string]any, known map[string]string) {
	for key, value := range in {
		why, ok := known[key]
		is, isSwitch := truth(value)
		switch {
		case !ok:
			why = "it knows no such key"
			if word := near.Word(key, slices.Collect(maps.Keys(known))); word != "" {
				why += "; is " + prefix + word + " meant?"
			}
		case why == "", value == nil, (key == "use_slots" || key == "use_pg_rewind") && is,
			(key == "failsafe_mode" || key == "check_timeline") && isSwitch && !is:
			continue
		}
		r.told[prefix+key] = why
	}
}
