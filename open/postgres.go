package open

import (
	"context"
	"net/url"
	"strings"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/pgstore"
)

func openPostgres(ctx context.Context, a address) (driver.Store, error) {
	c, err := postgresConfig(a)
	if err != nil {
		return nil, err
	}
	return pgstore.Open(ctx, c)
}

// postgresConfig leaves to the driver what libpq's URLs can say. The password goes beside the URL, so that no error can quote it.
func postgresConfig(a address) (c pgstore.Config, err error) {
	if a.query.Has("password") {
		return c, bad("a password among the options: write it before the host, %s, or use password-file=FILE", "postgres://USER:PASSWORD@HOST/DATABASE")
	}
	c.Password = a.password
	c.Prefix, _ = a.take("schema")
	migrate, err := a.flag("migrate", true)
	if err != nil {
		return c, err
	}
	c.NoMigrate = !migrate
	u := url.URL{Scheme: "postgres", Host: strings.Join(a.hosts, ","), Path: "/" + a.path, RawQuery: a.query.Encode()}
	if a.user != "" {
		u.User = url.User(a.user)
	}
	c.DSN = u.String()
	return c, nil
}
