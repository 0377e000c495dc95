package libpq_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/primacy-go/primacy/cmd/internal/postgres/libpq"
)

func TestString(t *testing.T) {
	got := libpq.String(map[string]string{"user": `it's a \ user`, "host": "10.0.0.1", "passfile": ""})
	if want := `host='10.0.0.1' passfile='' user='it\'s a \\ user'`; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	c, err := libpq.Parse(got + " port=5432 sslmode=disable")
	if err != nil || c.User != `it's a \ user` || c.Host != "10.0.0.1" {
		t.Errorf("%v, %v", c, err)
	}
}

// hostile is what a login shell may have left in the environment.
var hostile = map[string]string{
	"PGSERVICE": "reports", "PGHOST": "10.9.9.9", "PGPORT": "1", "PGUSER": "somebody", "PGDATABASE": "other",
	"PGPASSWORD": "secret", "PGOPTIONS": "-c search_path=evil", "PGAPPNAME": "psql", "PGTZ": "Mars",
	"PGSSLMODE": "verify-full", "PGTARGETSESSIONATTRS": "read-write", "PGCONNECT_TIMEOUT": "never",
	"PGREQUIREAUTH": "nothing", "PGMINPROTOCOLVERSION": "9",
}

func TestTheEnvironmentIsNotRead(t *testing.T) {
	for name, value := range hostile {
		t.Setenv(name, value)
	}
	pass := filepath.Join(t.TempDir(), "pass")
	if err := os.WriteFile(pass, []byte("*:*:*:*:theirs\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PGPASSFILE", pass)
	t.Setenv("PGSERVICEFILE", pass)
	c, err := libpq.Parse("host=/run/x port=5433 user=postgres dbname=postgres passfile=/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	if c.Host != "/run/x" || c.Port != 5433 || c.User != "postgres" || c.Database != "postgres" ||
		c.Password != "" || len(c.RuntimeParams) > 0 || c.ValidateConnect != nil {
		t.Errorf("%+v", c)
	}
	for name, value := range hostile { // other parts of the process may want it
		if os.Getenv(name) != value {
			t.Errorf("%s is %q afterwards", name, os.Getenv(name))
		}
	}
}

// A server refuses a login with a setting that it does not know.
func TestOnlySettingsGoToTheServer(t *testing.T) {
	values := map[string]string{"host": "127.0.0.1", "sslmode": "disable", "application_name": "pg1@a"}
	for k, v := range libpq.Vanished {
		values[k] = v
	}
	c, err := libpq.Parse(libpq.String(values))
	if err != nil {
		t.Fatal(err)
	}
	if len(c.RuntimeParams) != 1 || c.RuntimeParams["application_name"] != "pg1@a" {
		t.Errorf("settings: %v", c.RuntimeParams)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := c.DialFunc(context.Background(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}
