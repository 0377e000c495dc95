package server

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Override is a setting that is in force from elsewhere than where primacy sets it.
type Override struct {
	Name   string
	Source string // FILE:LINE, by the data directory; "default" where the line of ours is gone
}

func (o Override) String() string { return o.Name + " (" + o.Source + ")" }

// Overridden asks which of the settings that primacy owns, or that the configuration says, the
// server has from elsewhere. An ALTER SYSTEM of one is stronger than our files. What is on the
// command line nothing overrides.
func (s *Server) Overridden(ctx context.Context) (all []Override, err error) {
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
	rows, err := s.query(ctx, `SELECT name, coalesce(replace(is_from, dir, '') || ':' || line, source)
		FROM (SELECT name, context, source, pending_restart, file, coalesce(s.sourcefile, f.sourcefile) AS is_from,
			coalesce(s.sourceline, f.sourceline) AS line,
			regexp_replace(current_setting('config_file'), '[^/]*$', '') AS dir
			FROM (SELECT *, CASE WHEN lower(name) = ANY (string_to_array($1, ',')) THEN $4
				WHEN lower(name) = ANY (string_to_array($2, ',')) THEN $5
				WHEN lower(name) = ANY (string_to_array($3, ',')) THEN '' END AS file FROM pg_settings) s
			LEFT JOIN LATERAL (SELECT sourcefile, sourceline FROM pg_file_settings
				WHERE s.source = 'client' AND lower(name) = lower(s.name) ORDER BY seqno DESC LIMIT 1) f ON true
			WHERE file IS NOT NULL) x
		WHERE is_from <> dir || file AND NOT pending_restart
			OR is_from IS NULL AND source = 'default' AND file <> '' AND context IN ('sighup', 'superuser', 'user')
		ORDER BY name`, strings.Join(memberNames, ","), strings.Join(user, ","), strings.Join(nowhere, ","),
		memberConf, userConf)
	if err != nil {
		return nil, fmt.Errorf("settings that are overridden: %w", err)
	}
	for _, r := range rows {
		all = append(all, Override{r[0], r[1]})
	}
	return all, nil
}
