package open

import (
	"context"
	"errors"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/pgstore"
)

// Schema returns the SQL that creates what the store of a postgres:// URL needs, for whoever may
// run it where the program's own user may not. If the URL has a user, the SQL also gives him the
// rights to use it. It does not connect. Any other URL is an ErrURL.
func Schema(rawURL string) (string, error) {
	a, err := parse(rawURL)
	if err != nil {
		return "", err
	}
	if !strings.HasPrefix(a.scheme, "postgres") {
		return "", bad("a store of %s:// has no schema: only postgres:// has one", a.scheme)
	}
	c, err := postgresConfig(a)
	if err != nil {
		return "", err
	}
	sql := pgstore.Schema(c.Prefix)
	if sql == "" {
		return "", bad("schema=%s is not the name of a schema: use 1 to 63 bytes", c.Prefix)
	}
	if a.user != "" {
		sql += pgstore.Grants(c.Prefix, a.user)
	}
	return sql, nil
}

// postgresConfig leaves to the driver what libpq's URLs can say. The password goes beside the URL,
// so that no error can quote it.
func postgresConfig(a address) (c pgstore.Config, err error) {
	if a.query.Has("password") {
		return c, bad("a password among the options: write it before the host, %s, or use password-file=FILE", "postgres://USER:PASSWORD@HOST/DATABASE")
	}
	c.Password = a.password
	c.Prefix, _ = a.take("schema")
	c.NoMigrate = !a.flag("migrate", true)
	u := url.URL{Scheme: "postgres", Host: strings.Join(a.hosts, ","), Path: "/" + a.path, RawQuery: a.query.Encode()}
	if a.user != "" {
		u.User = url.User(a.user)
	}
	c.DSN = u.String()
	return c, a.err
}

// openPostgres opens the store. What the driver or the server does not know of the URL is an
// ErrURL: a service manager would start a program again and again that took it for a store that
// refuses.
func openPostgres(ctx context.Context, c pgstore.Config) (*pgstore.Store, error) {
	st, err := pgstore.Open(ctx, c)
	if err == nil || !errors.Is(err, driver.ErrRefused) {
		return st, err
	}
	config, unusable := pgxpool.ParseConfig(c.DSN)
	if unusable != nil {
		return nil, bad("%s", strings.TrimSuffix(err.Error(), ": "+driver.ErrRefused.Error()))
	}
	for option := range config.ConnConfig.RuntimeParams { // the server says which of them it does not take
		if strings.Contains(err.Error(), `"`+option+`"`) {
			return nil, bad("%v", err)
		}
	}
	return nil, err
}
