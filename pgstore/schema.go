package pgstore

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/primacy-go/primacy/driver"
)

//go:embed sql/tables1.sql
var tables1 string

//go:embed sql/basics.sql
var basics string

//go:embed sql/verbs.sql
var verbs string

//go:embed sql/others.sql
var others string

// steps lead from nothing to the present tables. Step n makes version n from version n - 1, with
// its data. Never change a step that was released.
var steps = []string{tables1}

// functions are created after the last step, anew with every version. A change of theirs needs a
// new step, even an empty one: a schema of the same version keeps its old functions. Only before
// the first release a change that works beside the old functions goes without one.
var functions = basics + verbs + others

// dropFunctions makes room for functions whose results have changed.
const dropFunctions = `DO {Q} DECLARE f regprocedure; BEGIN
	FOR f IN SELECT p.oid::regprocedure FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
		WHERE n.nspname = {NAME} LOOP
		EXECUTE 'DROP FUNCTION IF EXISTS ' || f || ' CASCADE';
	END LOOP;
END {Q};
`

// schema is where the tables are.
type schema struct {
	name    string
	salt    int64  // tells the locks of this schema from others'
	channel string // where hand-overs are told to who observes
	fill    *strings.Replacer
}

// newSchema returns the schema of that name, which may contain any characters that PostgreSQL
// takes.
func newSchema(name string) (*schema, error) {
	if name == "" {
		name = "primacy"
	}
	if len(name) > 63 || !utf8.ValidString(name) || strings.ContainsRune(name, 0) {
		return nil, fmt.Errorf("postgres: the prefix %q is not the name of a schema: use 1 to 63 bytes: %w",
			name, driver.ErrRefused)
	}
	sum := sha256.Sum256([]byte("primacy " + name))
	c := &schema{name: name, salt: int64(binary.BigEndian.Uint64(sum[:8]))}
	c.channel = "primacy_lines_" + hex.EncodeToString(sum[8:16])
	quoted, tag := pgx.Identifier{name}.Sanitize(), "$primacy$"
	for i := 0; strings.Contains(name, tag); i++ {
		tag = "$primacy" + strconv.Itoa(i) + "$"
	}
	c.fill = strings.NewReplacer("{S}", quoted, "{Q}", tag, "{SALT}", fmt.Sprintf("'%d'::bigint", c.salt),
		"{CHANNEL}", c.channel, "'{S}.counter'", literal(quoted+".counter"), "{NAME}", literal(name))
	return c, nil
}

// literal quotes a string for SQL, whatever standard_conforming_strings says.
func literal(s string) string {
	return "E'" + strings.NewReplacer(`\`, `\\`, "'", "''").Replace(s) + "'"
}

// script returns what makes the schema of a database that is at version from.
func (c *schema) script(from int) string {
	var b strings.Builder
	b.WriteString("CREATE SCHEMA IF NOT EXISTS {S};\n")
	for _, step := range steps[from:] {
		b.WriteString(step)
	}
	b.WriteString(dropFunctions + functions)
	fmt.Fprintf(&b, "UPDATE {S}.meta SET version = %d;\n", len(steps))
	return c.fill.Replace(b.String())
}

// Schema returns the SQL that creates the schema of that name (empty: "primacy") in a database that
// has none. Run it in one transaction (psql -1), as a role that may create schemas. Schema returns
// "" for a name that cannot be one.
func Schema(prefix string) string {
	c, err := newSchema(prefix)
	if err != nil {
		return ""
	}
	return c.script(0)
}

// Grants returns the SQL that lets another role than the schema's owner use it.
func Grants(prefix, role string) string {
	c, err := newSchema(prefix)
	if err != nil {
		return ""
	}
	to := pgx.Identifier{role}.Sanitize()
	return c.fill.Replace("GRANT USAGE ON SCHEMA {S} TO ") + to + ";\n" +
		c.fill.Replace("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {S} TO ") + to + ";\n" +
		c.fill.Replace("GRANT USAGE ON ALL SEQUENCES IN SCHEMA {S} TO ") + to + ";\n"
}

// version returns the version of the tables, 0 where there are none.
func (c *schema) version(ctx context.Context, conn *pgx.Conn) (v int, err error) {
	err = conn.QueryRow(ctx, c.fill.Replace("SELECT max(version) FROM {S}.meta"), pgx.QueryExecModeExec).Scan(&v)
	var pe *pgconn.PgError
	if errors.As(err, &pe) && (pe.Code == "42P01" || pe.Code == "3F000") {
		return 0, nil
	}
	return v, err
}

// ready makes sure that the tables are those of this program. Many processes may do so at once.
func (c *schema) ready(ctx context.Context, conn *pgx.Conn, migrate bool) error {
	v, err := c.version(ctx, conn)
	if err != nil {
		return err
	}
	switch {
	case v == len(steps):
		return nil
	case v > len(steps):
		return fmt.Errorf("the schema %q is at version %d and this program knows version %d: use a newer program "+
			"(version 2 was also made before the first release: docs/postgres.md): %w",
			c.name, v, len(steps), driver.ErrRefused)
	case !migrate:
		return fmt.Errorf("the schema %q is missing or older than this program (version %d of %d): "+
			"have its owner run the SQL of primacy schema (pgstore.Schema): %w", c.name, v, len(steps), driver.ErrRefused)
	}
	return c.migrate(ctx, conn)
}

// migrate brings the tables up to date in one transaction, one process after the other.
func (c *schema) migrate(ctx context.Context, conn *pgx.Conn) error {
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
		defer cancel()
		_ = tx.Rollback(ctx)
	}()
	lock := fmt.Sprintf("SELECT pg_advisory_xact_lock('%d'::bigint)", c.salt-1)
	if _, err := tx.Exec(ctx, lock, pgx.QueryExecModeExec); err != nil {
		return err
	}
	var there bool
	find := c.fill.Replace(`SELECT EXISTS (SELECT FROM pg_class t JOIN pg_namespace n ON n.oid = t.relnamespace
		WHERE n.nspname = {NAME} AND t.relname = 'meta')`)
	if err := tx.QueryRow(ctx, find, pgx.QueryExecModeExec).Scan(&there); err != nil {
		return err
	}
	v := 0
	if there { // somebody else may have been first
		find = c.fill.Replace("SELECT version FROM {S}.meta")
		if err := tx.QueryRow(ctx, find, pgx.QueryExecModeExec).Scan(&v); err != nil {
			return err
		}
	}
	if v > len(steps) {
		return fmt.Errorf("the schema %q has become that of a newer program meanwhile: %w", c.name, driver.ErrRefused)
	}
	if v < len(steps) {
		if _, err := tx.Conn().PgConn().Exec(ctx, c.script(v)).ReadAll(); err != nil {
			return c.forbidden(err)
		}
	}
	return tx.Commit(ctx)
}

// forbidden says what to do where we may not create the schema.
func (c *schema) forbidden(err error) error {
	var pe *pgconn.PgError
	if errors.As(err, &pe) && pe.Code == "42501" {
		return fmt.Errorf("the schema %q is missing or old and this role may not create it (%s): have a role that may "+
			"run the SQL of primacy schema (pgstore.Schema): %w", c.name, pe.Message, driver.ErrRefused)
	}
	return err
}
