package open

import (
	"context"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/zkstore"
)

func openZooKeeper(ctx context.Context, a address) (driver.Store, error) {
	c, err := zkConfig(a)
	if err != nil {
		return nil, err
	}
	return zkstore.Open(ctx, c)
}

func zkConfig(a address) (c zkstore.Config, err error) {
	c.Servers, c.Username, c.Password = a.hosts, a.user, a.password
	if a.path != "" {
		c.Root = "/" + a.path
	}
	if c.TLS, err = a.takeTLS("zks"); err != nil {
		return c, err
	}
	if c.Tick, err = a.duration("tick"); err != nil {
		return c, err
	}
	if (c.Username == "") != (c.Password == "") {
		return c, bad("user and password go together: use zk://USER:PASSWORD@HOST:2181, or password-file=FILE for the password")
	}
	return c, a.rest("ca, cert, key, server-name, password-file or tick")
}
