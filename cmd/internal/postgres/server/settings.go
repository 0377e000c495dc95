package server

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/primacy-go/primacy/cmd/internal/postgres/durable"
)

// What stands in postgresql.auto.conf, and nobody but us may set.
const (
	conninfo = "primary_conninfo"
	slotName = "primary_slot_name"
	syncSSN  = "synchronous_standby_names"
)

var memberNames = []string{conninfo, slotName, syncSSN}

const (
	autoConf = "postgresql.auto.conf"
	userConf = "primacy.conf"
)

// setting is a line of a file of settings.
type setting struct{ name, value string }

// fixed are the settings of every server, on the command line: no file and no ALTER SYSTEM changes
// them.
//
// restart_after_crash: a postmaster that starts itself anew would be a primary at once. A
// restore_command brings WAL of a former primary past the point where the next one took over.
// recovery_target and promote_trigger_file let a standby promote itself.
func (s *Server) fixed() []setting {
	hba := s.cfg.HBA
	if hba == "" {
		hba = s.path("pg_hba.conf")
	}
	all := []setting{
		{"data_directory", s.cfg.Data}, {"hba_file", hba},
		{"listen_addresses", s.host}, {"port", s.port}, {"unix_socket_directories", s.cfg.SocketDir},
		{"hot_standby", "on"}, {"wal_log_hints", "on"}, {"restart_after_crash", "off"},
		{"restore_command", ""}, {"recovery_target", ""}, {"recovery_target_lsn", ""}, {"recovery_target_name", ""},
		{"recovery_target_time", ""}, {"recovery_target_xid", ""}, {"recovery_target_timeline", "latest"},
	}
	if s.version.Major < 16 {
		all = append(all, setting{"promote_trigger_file", ""})
	}
	if s.version.Major >= 17 {
		all = append(all, setting{"allow_alter_system", "on"})
	}
	return all
}

// matching are the settings which a standby must have as large as its primary had them, with
// PostgreSQL's defaults. A standby with a smaller one refuses to start.
var matching = []string{
	"max_connections", "max_worker_processes", "max_wal_senders", "max_prepared_transactions",
	"max_locks_per_transaction",
}

var byDefault = map[string]string{
	"max_connections": "100", "max_worker_processes": "8", "max_wal_senders": "10",
	"max_prepared_transactions": "0", "max_locks_per_transaction": "64",
	"max_replication_slots": "10", "wal_level": "replica",
}

// spareSenders are the walsenders beyond those that were asked for, which may just do for the
// standbys: a clone takes two, and a look at a standby one.
const spareSenders = 3

// arguments are the postmaster's: what protects, what must match.
func (s *Server) arguments(c Control) []string {
	all := s.fixed()
	line := s.onCommandLine(c)
	for _, name := range slices.Sorted(maps.Keys(line)) {
		all = append(all, setting{name, line[name]})
	}
	args := []string{s.program("postgres"), "-D", s.cfg.Data}
	for _, one := range all {
		args = append(args, "-c", one.name+"="+one.value)
	}
	return args
}

// onCommandLine are the parameters that a server gets by its command line. Of those that must match
// the larger counts of what was asked for and what the data directory was last used with.
func (s *Server) onCommandLine(c Control) map[string]string {
	all, given := maps.Clone(byDefault), s.parameters()
	for name := range all {
		if value, ok := given[name]; ok {
			all[name] = value
		}
		n, err := strconv.Atoi(all[name])
		if err != nil || !slices.Contains(matching, name) {
			continue
		}
		if name == "max_wal_senders" {
			n += spareSenders
		}
		all[name] = strconv.Itoa(max(n, c.Settings[name]))
	}
	return all
}

// Parameters returns PostgreSQL's parameters by names in lower case: it takes upper and lower case
// for the same. It refuses those that are primacy's to set, that would break the file that they are
// written to, or without which an acknowledged commit could be lost. The error is one line.
func Parameters(all map[string]string) (map[string]string, error) {
	lower := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		l := strings.ToLower(name)
		if _, twice := lower[l]; twice {
			return nil, fmt.Errorf("parameters: %s is there twice, in upper and in lower case", l)
		}
		if err := checkParameter(l, all[name]); err != nil {
			return nil, fmt.Errorf("parameters: %w", err)
		}
		lower[l] = all[name]
	}
	return lower, nil
}

var parameterName = regexp.MustCompile(`^[a-z_][a-z0-9_$]*(\.[a-z_][a-z0-9_$]*)?$`)

// owned are the settings that nobody but primacy sets, and why. Where there is a value, who asks
// for that is not refused: it is so anyway.
var owned = map[string]struct{ value, why string }{
	conninfo:                   {"", "it says whom a standby follows"},
	slotName:                   {"", "it says by which slot a standby follows"},
	syncSSN:                    {"", "it says for whom commits wait: change the durability"},
	"data_directory":           {"", "each member's file says it"},
	"config_file":              {"", "primacy writes it"},
	"hba_file":                 {"", "each member has its own"},
	"listen_addresses":         {"", "each member's file says it"},
	"port":                     {"", "each member's file says it"},
	"unix_socket_directories":  {"", "each member's file says it"},
	"hot_standby":              {"on", "a member that takes no SQL cannot say what it has"},
	"wal_log_hints":            {"on", "pg_rewind needs it"},
	"restart_after_crash":      {"off", "a server that starts itself anew would be a primary at once"},
	"allow_alter_system":       {"on", "primacy waits for an ALTER SYSTEM of its own"},
	"restore_command":          {"", "it brings WAL of a former primary past the point where the next one took over"},
	"promote_trigger_file":     {"", "a standby could promote itself"},
	"recovery_target":          {"", "a standby could promote itself"},
	"recovery_target_action":   {"", "a standby could promote itself"},
	"recovery_target_lsn":      {"", "a standby could promote itself"},
	"recovery_target_name":     {"", "a standby could promote itself"},
	"recovery_target_time":     {"", "a standby could promote itself"},
	"recovery_target_xid":      {"", "a standby could promote itself"},
	"recovery_target_timeline": {"latest", "a standby follows its primary to each timeline"},
	"recovery_min_apply_delay": {"0", "a standby that is behind on purpose cannot say in time what it has"},
}

// lossy are the values with which an acknowledged commit could be lost. Those of a switch stand for
// all ways to write it.
var lossy = map[string][]string{
	"fsync": {"off"}, "full_page_writes": {"off"}, "data_sync_retry": {"on"},
	"synchronous_commit": {"off", "local", "remote_write"},
}

// safe are parameters, and PostgreSQL's own values of lossy where there are none: so those of
// postgresql.conf, which may be of a former manager, do not count.
func safe(parameters map[string]string) map[string]string {
	all := map[string]string{"fsync": "on", "full_page_writes": "on", "data_sync_retry": "off",
		"synchronous_commit": "on"}
	maps.Copy(all, parameters)
	return all
}

// meaning is a value in the way in which lossy and owned write it: PostgreSQL knows many words for
// on and off.
func meaning(value string) string {
	v := strings.ToLower(strings.TrimSpace(value))
	for _, word := range []struct{ short, long, is string }{
		{"t", "true", "on"}, {"y", "yes", "on"}, {"on", "on", "on"}, {"1", "1", "on"},
		{"f", "false", "off"}, {"n", "no", "off"}, {"of", "off", "off"}, {"0", "0", "off"},
	} {
		if strings.HasPrefix(v, word.short) && strings.HasPrefix(word.long, v) {
			return word.is
		}
	}
	return v
}

func checkParameter(name, value string) error {
	o, ours := owned[name]
	switch {
	case !parameterName.MatchString(name):
		return fmt.Errorf("%q is no name of a setting", name)
	case strings.ContainsAny(value, "\n\r\x00"):
		return fmt.Errorf("%s: the value has a line break", name)
	case ours && (o.value == "" || meaning(value) != meaning(o.value)), strings.HasPrefix(name, "primacy."):
		return fmt.Errorf("%s is set by primacy: take it out (%s)", name, cmp.Or(o.why, "it is for its own use"))
	case slices.Contains(lossy[name], meaning(value)):
		return fmt.Errorf("%s = %q: an acknowledged commit could be lost", name, value)
	case name == "wal_level" && strings.EqualFold(value, "minimal"):
		return fmt.Errorf("%s = %q: standbys need replica or logical", name, value)
	case slices.Contains(matching, name):
		if n, err := strconv.Atoi(value); err != nil || n < 0 {
			return fmt.Errorf("%s = %q: give a number", name, value)
		}
	}
	return nil
}

// writeUserConf writes the user's parameters, and has postgresql.conf include them.
func (d *directory) writeUserConf(parameters map[string]string) error {
	var b bytes.Buffer
	b.WriteString("# Written by primacy: change the cluster's configuration instead.\n")
	all := safe(parameters)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if _, ours := owned[name]; !ours && byDefault[name] == "" { // else it is on the command line
			fmt.Fprintf(&b, "%s = %s\n", name, quoteSetting(all[name]))
		}
	}
	fmt.Fprintf(&b, "%s = '%s'\n", loadedMark, markOf(parameters))
	d.files.Lock()
	defer d.files.Unlock()
	if err := durable.Replace(d.path(userConf), b.Bytes()); err != nil {
		return err
	}
	main := d.path("postgresql.conf")
	text, err := os.ReadFile(main)
	if err != nil {
		return err
	}
	const include = "include_if_exists = '" + userConf + "'"
	var next strings.Builder
	for line := range strings.Lines(string(text)) {
		if strings.TrimSpace(line) != include {
			next.WriteString(strings.TrimSuffix(line, "\n") + "\n")
		}
	}
	next.WriteString(include + "\n") // the last line of a setting counts
	if next.String() == string(text) {
		return nil
	}
	return durable.Replace(main, []byte(next.String()))
}

// writeAutoConf sets these in postgresql.auto.conf, removes what it sets of the names in drop, and
// keeps all other lines. It says whether that changed anything. Errors name the file.
func (d *directory) writeAutoConf(drop []string, set ...setting) (changed bool, err error) {
	d.files.Lock()
	defer d.files.Unlock()
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", autoConf, err)
		}
	}()
	text, err := os.ReadFile(d.path(autoConf))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	d.noteLocked(set)
	next := withSettings(string(text), drop, set)
	if err == nil && next == string(text) {
		return false, durable.SyncDir(d.data) // it may have been replaced and not be on disk yet
	}
	return true, durable.Replace(d.path(autoConf), []byte(next))
}

// noteLocked notes what is written, for [Server.Overridden]. The caller holds files.
func (d *directory) noteLocked(set []setting) {
	next := maps.Clone(d.written) // another goroutine may read the last one
	if next == nil {
		next = map[string]string{}
	}
	for _, one := range set {
		next[one.name] = one.value
	}
	d.written = next
}

// lastWritten returns what was written of our settings since this process began, by name.
func (d *directory) lastWritten() map[string]string {
	d.files.Lock()
	defer d.files.Unlock()
	return d.written
}

// setForGood has these settings in postgresql.auto.conf when it returns nil, and no ALTER SYSTEM of
// another setting removes them. ALTER SYSTEM reads the whole file and writes it anew a moment
// later: one that read before our write brings the former lines back. It holds a lock from its
// reading to its writing. So once an ALTER SYSTEM of our own has returned, each that read before
// our write has written too, and each later one reads what we wrote.
func (s *Server) setForGood(ctx context.Context, set ...setting) error {
	if _, err := s.writeAutoConf(nil, set...); err != nil { // at once, also where the server takes no SQL yet
		return err
	}
	again := 10 * poll
	return s.until(ctx, autoConf+" may change again", func() error {
		if err := s.alterSystem(ctx); err != nil {
			if sql := new(pgconn.PgError); errors.As(err, &sql) { // it logs each try, on the disk that is full
				select {
				case <-time.After(again):
				case <-ctx.Done():
				}
				again = min(2*again, time.Second)
			}
			return fmt.Errorf("ALTER SYSTEM: %w", err)
		}
		changed, err := s.writeAutoConf(nil, set...)
		if err == nil && changed {
			err = errors.New("an ALTER SYSTEM brought former lines back")
		}
		return err
	})
}

var settingLine = regexp.MustCompile(`^\s*([A-Za-z_][A-Za-z0-9_$.]*)`)

// withSettings returns the text of a file of settings in which these are set, once, and those of
// the names in drop are not. Names are the same in upper and lower case.
func withSettings(text string, drop []string, set []setting) string {
	var b strings.Builder
	left := slices.Clone(set)
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n") + "\n"
		if i := slices.IndexFunc(left, func(one setting) bool { return line == one.line() }); i >= 0 {
			left = slices.Delete(left, i, i+1)
		} else if m := settingLine.FindStringSubmatch(line); m != nil {
			drops := func(name string) bool { return strings.EqualFold(name, m[1]) }
			sets := func(one setting) bool { return drops(one.name) }
			if slices.ContainsFunc(drop, drops) || slices.ContainsFunc(set, sets) {
				continue
			}
		}
		b.WriteString(line)
	}
	for _, one := range left {
		b.WriteString(one.line())
	}
	return b.String()
}

// line is the setting as ALTER SYSTEM writes it.
func (one setting) line() string { return one.name + " = " + quoteSetting(one.value) + "\n" }

var settingEscapes = strings.NewReplacer(`'`, `''`, `\`, `\\`)

// quoteSetting quotes a value for a file of settings.
func quoteSetting(v string) string { return "'" + settingEscapes.Replace(v) + "'" }
