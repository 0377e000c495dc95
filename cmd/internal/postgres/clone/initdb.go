package clone

import (
	"bytes"
	"context"
	"fmt"
	"os/user"
	"strings"

	"github.com/primacy-go/primacy/cmd/internal/postgres/durable"
)

// Initdb makes a new database system, in a directory that is missing, empty or unfinished, and
// returns its identifier. Pages have checksums, which pg_rewind needs. Over the Unix socket the
// superuser is let in if the process runs as our user; everybody else needs a password. The
// replication role may read what pg_rewind reads. The directory is unfinished until [Dir.Finish].
func (d *Dir) Initdb(ctx context.Context) (systemID string, err error) {
	sql, err := d.roles()
	if err != nil {
		return "", err
	}
	hba, ident, err := d.access()
	if err != nil {
		return "", err
	}
	if err := d.begin(byInitdb, ""); err != nil {
		return "", err
	}
	locale := d.cfg.Locale
	if locale == "" {
		locale = "C"
	}
	err = d.run(ctx, program{name: "initdb", args: []string{"-D", d.cfg.Data, "-U", d.cfg.Superuser,
		"--encoding=UTF8", "--locale=" + locale, "--data-checksums", "--auth-local=peer", "--auth-host=scram-sha-256"}})
	if err != nil {
		return "", err
	}
	if err := durable.Replace(d.path("pg_hba.conf"), hba); err != nil {
		return "", err
	}
	if err := durable.Replace(d.path("pg_ident.conf"), ident); err != nil {
		return "", err
	}
	// Errors are not shown with the statement: it has a password.
	err = d.run(ctx, program{name: "postgres", stdin: sql, args: []string{"--single", "-D", d.cfg.Data, "-j",
		"-c", "exit_on_error=on", "-c", "password_encryption=scram-sha-256", "-c", "log_statement=none",
		"-c", "log_min_error_statement=panic", "-c", "log_destination=stderr", "-c", "logging_collector=off",
		"postgres"}})
	if err != nil {
		return "", fmt.Errorf("make the replication role: %w", err)
	}
	system, ok := d.systemID()
	if !ok {
		return "", fmt.Errorf("initdb has left no readable control file in %s", d.cfg.Data)
	}
	return system, d.mark(byInitdb, system)
}

// roles returns the statements that make the replication role, each with an empty line after it.
func (d *Dir) roles() (string, error) {
	name, login := quoteIdent(d.cfg.Replication.User), ""
	password, err := d.cfg.Replication.Password()
	switch {
	case err != nil:
		return "", unfit("passfile: %w", err)
	case password != "":
		login = " PASSWORD " + quoteLiteral(password)
	}
	var all []string
	if d.cfg.Replication.User != d.cfg.Superuser {
		all = append(all, "CREATE ROLE "+name+" LOGIN REPLICATION"+login)
		for _, f := range []string{"pg_ls_dir(text, boolean, boolean)", "pg_stat_file(text, boolean)",
			"pg_read_binary_file(text)", "pg_read_binary_file(text, bigint, bigint, boolean)"} {
			all = append(all, "GRANT EXECUTE ON FUNCTION pg_catalog."+f+" TO "+name)
		}
		if d.major >= 15 {
			all = append(all, "GRANT pg_checkpoint TO "+name)
		}
	} else if login != "" {
		all = append(all, "ALTER ROLE "+name+login)
	}
	var b strings.Builder
	for _, sql := range all {
		b.WriteString(sql + ";\n\n")
	}
	return b.String(), nil
}

// access returns pg_hba.conf, of which the first line counts that fits, and pg_ident.conf.
func (d *Dir) access() (hba, ident []byte, err error) {
	us, err := user.Current()
	if err != nil {
		return nil, nil, unfit("%w", err)
	}
	super, replicator := quoteName(d.cfg.Superuser), quoteName(d.cfg.Replication.User)
	var h, i bytes.Buffer
	fmt.Fprintln(&h, "# Made by primacy with the cluster, and yours to change. The first line counts that fits.")
	// Replication over the socket is how a standby is asked for the timeline of its last record.
	fmt.Fprintf(&h, "local all,replication %s peer map=primacy\n", super)
	for _, line := range d.cfg.HBA {
		if strings.ContainsAny(line, "\r\n\x00") {
			return nil, nil, unfit("hba: %q has a line break", line)
		}
		fmt.Fprintln(&h, line)
	}
	fmt.Fprintln(&h, "# The other members: replication, and what pg_rewind reads.")
	fmt.Fprintf(&h, "host replication %s all scram-sha-256\nhost postgres %[1]s all scram-sha-256\n", replicator)
	fmt.Fprintln(&i, "# Made by primacy: the user that runs it is the superuser.")
	fmt.Fprintf(&i, "primacy %s %s\n", quoteName(us.Username), super)
	return h.Bytes(), i.Bytes(), nil
}

func quoteIdent(v string) string   { return `"` + strings.ReplaceAll(v, `"`, `""`) + `"` }
func quoteLiteral(v string) string { return `'` + strings.ReplaceAll(v, `'`, `''`) + `'` }

// quoteName quotes a name for pg_hba.conf and pg_ident.conf: so "all" and "+x" have no other
// meaning.
func quoteName(v string) string { return quoteIdent(v) }
