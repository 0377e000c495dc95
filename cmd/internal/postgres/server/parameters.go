package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// loadedMark is a setting in the file of the user's parameters by which a server shows which file
// it has loaded.
const loadedMark = "primacy.configuration"

// Try says whether this release of PostgreSQL knows these parameters and takes their values. One
// that it does not know would keep a server from starting, and a running one from loading any
// change of its files, the names of standbys too. What can be seen only at a start is not seen:
// memory, libraries.
func (s *Server) Try(ctx context.Context, parameters map[string]string) error {
	for _, name := range []string{"include", "include_dir", "include_if_exists"} {
		if _, there := parameters[name]; there {
			return fmt.Errorf("%s is no parameter: it would have the server read another file", name)
		}
	}
	all := setOf(parameters)
	reserved := all.number("superuser_reserved_connections", 3) + all.number("reserved_connections", 0)
	if most := all.number("max_connections", 100); reserved >= most {
		return fmt.Errorf("max_connections = %d: of these %d are reserved for superusers", most, reserved)
	}
	file, err := settingsFile(parameters)
	if err != nil {
		return err
	}
	defer file.Close()
	args := []string{"-C", "data_directory", "-c", "config_file=/proc/self/fd/3", "-c", "hba_file=/dev/null",
		"-c", "ident_file=/dev/null", "-c", "data_directory=/", "-c", "log_min_messages=log"}
	if _, err := s.outputWith(ctx, []*os.File{file}, "postgres", args...); err != nil {
		for _, m := range refusalText.FindAllStringSubmatch(err.Error(), -1) {
			if !strings.HasPrefix(m[1], "skipping missing configuration file") { // that of ALTER SYSTEM
				return fmt.Errorf("PostgreSQL %v: %s", s.version, inFile.ReplaceAllString(strings.TrimSpace(m[1]), ""))
			}
		}
		return fmt.Errorf("postgres -C: %.500s", strings.Join(strings.Fields(err.Error()), " "))
	}
	return nil
}

// What is wrong comes first, and then that the file has errors.
var (
	refusalText = regexp.MustCompile(`(?:LOG|ERROR|FATAL): +([^\n]*)`)
	inFile      = regexp.MustCompile(` in file "[^"]*" line \d+`)
)

// settingsFile returns a file of these parameters. In the arguments of a program everybody on the
// machine could read their values, and some are secrets.
func settingsFile(parameters map[string]string) (*os.File, error) {
	f, err := memoryFile()
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(parameters)) {
		if _, ours := owned[name]; !ours {
			b.WriteString(setting{name, parameters[name]}.line())
		}
	}
	if _, err = f.WriteString(b.String()); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

type setOf map[string]string

func (s setOf) number(name string, usual int) int {
	if n, err := strconv.Atoi(s[name]); err == nil {
		return n
	}
	return usual
}

// Configure gives the server other parameters. A server that runs has loaded them when it returns;
// those that need a restart are in [Server.Pending]. One that does not run has them from its next
// start on. They were checked with [Parameters] and [Server.Try].
func (s *Server) Configure(ctx context.Context, parameters map[string]string) error {
	s.mu.Lock()
	s.cfg.Parameters = maps.Clone(parameters)
	s.mu.Unlock()
	if _, ok := s.Running(); !ok {
		return nil
	}
	if err := s.writeUserConf(parameters); err != nil {
		return fmt.Errorf("%s: %w", userConf, err)
	}
	if err := s.reload(ctx); err != nil {
		return err
	}
	want := markOf(parameters)
	return s.until(ctx, userConf+" not loaded", func() error {
		row, err := s.row(ctx, "SELECT coalesce(current_setting($1, true), '')", loadedMark)
		if err == nil && row[0] != want {
			err = fmt.Errorf("the server's parameters are still the former ones: its log says why")
		}
		return err
	})
}

// parameters returns those that are to be in force.
func (s *Server) parameters() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cfg.Parameters
}

// markOf is a text that tells one set of parameters from another.
func markOf(parameters map[string]string) string {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(parameters)) {
		fmt.Fprintf(h, "%q %q\n", name, parameters[name])
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// Pending are the parameters that a running server has not, by names.
type Pending struct {
	Restart []string // a restart gives it these
	// Held stay larger than they were asked for: the data were last used with more, and PostgreSQL
	// starts no standby with less than its primary had.
	Held []string
}

// Pending asks which parameters wait for a restart.
func (s *Server) Pending(ctx context.Context) (p Pending, err error) {
	// What is on the command line may stand in the files of initdb too, with another value.
	line := slices.Concat(slices.Collect(maps.Keys(byDefault)), slices.Collect(maps.Keys(owned)))
	rows, err := s.query(ctx, `SELECT name FROM pg_settings WHERE pending_restart
		AND name <> ALL (string_to_array($1, ','))`, strings.Join(line, ","))
	if err != nil {
		return p, err
	}
	for _, r := range rows {
		p.Restart = append(p.Restart, r[0])
	}
	c, err := s.Control(ctx)
	if err != nil {
		return p, err
	}
	rows, err = s.query(ctx, "SELECT name, setting FROM pg_settings WHERE name = ANY (string_to_array($1, ','))",
		strings.Join(slices.Sorted(maps.Keys(byDefault)), ","))
	if err != nil {
		return p, err
	}
	next, asked := s.onCommandLine(c), s.onCommandLine(Control{})
	for _, r := range rows {
		name, now := r[0], r[1]
		if next[name] != now && !(name == "wal_level" && meansReplica(next[name]) && meansReplica(now)) {
			p.Restart = append(p.Restart, name)
		}
		if next[name] != asked[name] {
			p.Held = append(p.Held, name)
		}
	}
	slices.Sort(p.Restart)
	slices.Sort(p.Held)
	return p, nil
}

// meansReplica knows the words of former releases.
func meansReplica(level string) bool {
	return slices.Contains([]string{"replica", "hot_standby", "archive"}, strings.ToLower(level))
}

// Short says whether a standby has replayed that its primary was given a larger max_connections, or
// another of those settings, than it has itself. Then it replays nothing more until it is started
// anew, and cannot be promoted. Before PostgreSQL 14 it ends by itself.
func (s *Server) Short(ctx context.Context) (bool, error) {
	c, err := s.Control(ctx)
	if err != nil {
		return false, err
	}
	rows, err := s.query(ctx, "SELECT name, setting FROM pg_settings WHERE name = ANY (string_to_array($1, ','))",
		strings.Join(matching, ","))
	for _, r := range rows {
		if n, err := strconv.Atoi(r[1]); err == nil && n < c.Settings[r[0]] {
			return true, nil
		}
	}
	return false, err
}

// Override is a setting that is in force, and not as primacy has set it.
type Override struct {
	Name string
	// FILE:LINE, by the data directory, where a line in a file is stronger than primacy's.
	// "changed", where primacy's own line is not there any more.
	Source string
}

func (o Override) String() string { return o.Name + " (" + o.Source + ")" }

const changedByHand = "changed"

// Overridden asks which of the settings that primacy owns, or that the configuration says, are not
// as primacy has set them. An ALTER SYSTEM of one is stronger than the file of the configuration,
// and takes the place of our own lines in postgresql.auto.conf. What is on the command line nothing
// overrides.
func (s *Server) Overridden(ctx context.Context) ([]Override, error) {
	all, err := s.overriddenByFiles(ctx)
	if err == nil {
		var more []Override
		more, err = s.overwritten(ctx)
		all = append(all, more...)
	}
	if err != nil {
		return nil, fmt.Errorf("settings that are overridden: %w", err)
	}
	slices.SortFunc(all, func(a, b Override) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// overriddenByFiles asks for those that are in force from another file than ours.
func (s *Server) overriddenByFiles(ctx context.Context) (all []Override, err error) {
	fixed := map[string]bool{}
	for _, one := range s.fixed() {
		fixed[one.name] = true
	}
	var nowhere, user []string // set in no file; in userConf
	for name := range owned {
		if !fixed[name] && !slices.Contains(memberNames, name) {
			nowhere = append(nowhere, name)
		}
	}
	for name := range maps.Keys(safe(s.parameters())) {
		if _, ours := owned[name]; !ours && byDefault[name] == "" {
			user = append(user, name)
		}
	}
	// One that a restart is to bring is in force from where it was. To such a setting a file gives
	// no new source if it says what is in force by default; nor, in this session, to one that only
	// new sessions take. Our own sessions have some from us.
	rows, err := s.query(ctx, `SELECT name, coalesce(replace(is_from, dir, '') || ':' || line, $4)
		FROM (SELECT name, context, source, pending_restart, file, coalesce(s.sourcefile, f.sourcefile) AS is_from,
			coalesce(s.sourceline, f.sourceline) AS line,
			regexp_replace(current_setting('config_file'), '[^/]*$', '') AS dir
			FROM (SELECT *, CASE WHEN lower(name) = ANY (string_to_array($1, ',')) THEN $3
				WHEN lower(name) = ANY (string_to_array($2, ',')) THEN '' END AS file FROM pg_settings) s
			LEFT JOIN LATERAL (SELECT sourcefile, sourceline FROM pg_file_settings
				WHERE s.source = 'client' AND lower(name) = lower(s.name) ORDER BY seqno DESC LIMIT 1) f ON true
			WHERE file IS NOT NULL) x
		WHERE is_from <> dir || file AND NOT pending_restart
			OR is_from IS NULL AND source = 'default' AND file <> '' AND context IN ('sighup', 'superuser', 'user')`,
		strings.Join(user, ","), strings.Join(nowhere, ","), userConf, changedByHand)
	for _, r := range rows {
		all = append(all, Override{r[0], r[1]})
	}
	return all, err
}

// overwritten asks for those of memberNames that have another value than was written last, in the
// file as well: what was just written may not be loaded yet.
func (s *Server) overwritten(ctx context.Context) (all []Override, err error) {
	before := s.lastWritten()
	rows, err := s.query(ctx, `SELECT s.name, s.setting, coalesce(f.setting, '') FROM pg_settings s
		LEFT JOIN LATERAL (SELECT setting FROM pg_file_settings WHERE lower(name) = s.name
			ORDER BY seqno DESC LIMIT 1) f ON true
		WHERE s.name = ANY (string_to_array($1, ','))`, strings.Join(memberNames, ","))
	after := s.lastWritten()
	for _, r := range rows {
		want, known := before[r[0]]
		if known && after[r[0]] == want && r[1] != want && r[2] != want {
			all = append(all, Override{r[0], changedByHand})
		}
	}
	return all, err
}
