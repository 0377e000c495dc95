package server

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Override is a setting that is in force, and not as primacy has set it.
type Override struct {
	Name string
	// FILE:LINE, by the data directory, where a line in a file is stronger than primacy's. "changed",
	// where primacy's own line is not there any more.
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

func (d *directory) lastWritten() map[string]string {
	d.files.Lock()
	defer d.files.Unlock()
	return d.written
}
