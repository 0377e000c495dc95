package pgstore

import (
	"context"
	"crypto/rand"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/pgtest"
)

// TestMigration runs first with the tables of this program, then as a later program with one step
// more, then as this one again.
func TestMigration(t *testing.T) {
	srv := pgtest.Shared(t, "calm").Fresh()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := Open(ctx, Config{DSN: srv.URL()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l, err := s.Grant(ctx, "a", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	places, err := l.Claim(ctx, driver.Claim{Name: "n", ID: "1"})
	if err != nil {
		t.Fatal(err)
	}
	now := steps
	defer func() { steps = now }()
	steps = append(steps[:len(now):len(now)], "ALTER TABLE {S}.lines ADD COLUMN extra int;\n")
	if _, err := Open(ctx, Config{DSN: srv.URL(), NoMigrate: true}); !errors.Is(err, driver.ErrRefused) || !strings.Contains(err.Error(), "older") {
		t.Errorf("Open of older tables with NoMigrate = %v, want ErrRefused", err)
	}
	later, err := Open(ctx, Config{DSN: srv.URL()})
	if err != nil {
		t.Fatalf("Open of older tables: %v", err)
	}
	defer later.Close()
	if ln, err := later.Line(ctx, "n"); err != nil || ln.Holder == nil || ln.Holder.Token != places[0].Token {
		t.Errorf("line after the migration = %+v, %v, want the claim with token %d", ln, err, places[0].Token)
	}
	if err := l.Renew(ctx); err != nil { // who was there before
		t.Errorf("Renew after the migration: %v", err)
	}
	steps = now
	if _, err := Open(ctx, Config{DSN: srv.URL()}); !errors.Is(err, driver.ErrRefused) || !strings.Contains(err.Error(), "newer program") || strings.Contains(err.Error(), "\n") {
		t.Errorf("Open of newer tables = %v, want ErrRefused in one line", err)
	}
}

// TestARoleThatMayOnlyUseTheSchema creates the schema as its owner, under an ordinary and an odd
// name, and uses it as another role.
func TestARoleThatMayOnlyUseTheSchema(t *testing.T) {
	t.Parallel()
	srv := pgtest.Shared(t, "calm").Fresh()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, prefix := range []string{"primacy", `o'd"d %s {S}`} {
		role := `u"'r ` + strings.ReplaceAll(prefix, `"`, "") + rand.Text()
		srv.Exec(Schema(prefix))
		srv.Exec("CREATE ROLE " + pgx.Identifier{role}.Sanitize() + " LOGIN;" + Grants(prefix, role))
		dsn := strings.Replace(srv.URL(), pgtest.User+"@", url.PathEscape(role)+"@", 1)
		s, err := Open(ctx, Config{DSN: dsn, Prefix: prefix, NoMigrate: true})
		if err != nil {
			t.Fatalf("Open by a role without rights of an owner: %v", err)
		}
		defer s.Close()
		l, err := s.Grant(ctx, "a", time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Renew(ctx); err != nil {
			t.Errorf("Renew: %v", err)
		}
		if _, err := s.Lines(ctx, ""); err != nil {
			t.Errorf("Lines: %v", err)
		}
		if err := s.do(ctx, "sweep", "SELECT {S}.sweep()", nil, nil); err != nil {
			t.Errorf("sweep: %v", err)
		}
		for _, f := range s.Examine(ctx, "n") {
			if f.Level == driver.Failed {
				t.Errorf("Examine: %+v", f)
			}
		}
	}
}

// TestASchemaOfVersionTwo: programs from before the first release made one. It is refused in one
// line, and used after the statement in docs/postgres.md.
func TestASchemaOfVersionTwo(t *testing.T) {
	t.Parallel()
	srv := pgtest.Shared(t, "calm").Fresh()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	srv.Exec(Schema("") + "CREATE UNLOGGED TABLE primacy.tethers (lease text); UPDATE primacy.meta SET version = 2")
	_, err := Open(ctx, Config{DSN: srv.URL()})
	if !errors.Is(err, driver.ErrRefused) || !strings.Contains(err.Error(), "version 2") || !strings.Contains(err.Error(), "docs/postgres.md") || strings.Contains(err.Error(), "\n") {
		t.Errorf("Open of version 2 = %v, want ErrRefused in one line that names the version and the page", err)
	}
	srv.Exec("UPDATE primacy.meta SET version = 1")
	s, err := Open(ctx, Config{DSN: srv.URL(), NoMigrate: true})
	if err != nil {
		t.Fatalf("Open of version 2 that was set to 1: %v", err)
	}
	s.Close()
}

// FuzzPrefix holds the quoting to what PostgreSQL takes for the end of an identifier, a string and
// a body.
func FuzzPrefix(f *testing.F) {
	for _, p := range []string{"primacy", `a"b`, "a'b", `a\b`, "$primacy$", "$primacy$$primacy0$", "{S}", "{Q}{SALT}", "x; DROP TABLE y", ""} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, prefix string) {
		c, err := newSchema(prefix)
		if err != nil {
			if !errors.Is(err, driver.ErrRefused) {
				t.Fatal(err)
			}
			return
		}
		id, tag, name := c.fill.Replace("{S}"), c.fill.Replace("{Q}"), c.fill.Replace("{NAME}")
		inner := id[1 : len(id)-1]
		if strings.ReplaceAll(strings.ReplaceAll(inner, `""`, ""), `"`, "!") != strings.ReplaceAll(inner, `""`, "") || strings.ReplaceAll(inner, `""`, `"`) != c.name {
			t.Errorf("identifier %s for %q", id, c.name)
		}
		if strings.Contains(c.name, tag) {
			t.Errorf("the tag %s stands in %q", tag, c.name)
		}
		text := strings.NewReplacer(`\\`, `\`, "''", "'").Replace(name[2 : len(name)-1])
		if !strings.HasPrefix(name, "E'") || !strings.HasSuffix(name, "'") || text != c.name {
			t.Errorf("literal %s for %q", name, c.name)
		}
		if bodies := strings.Count(c.script(0), tag); bodies%2 != 0 || bodies == 0 {
			t.Errorf("%d marks %s in the script for %q", bodies, tag, c.name)
		}
	})
}
