package open

import (
	"context"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/etcdstore"
)

func openEtcd(ctx context.Context, a address) (driver.Store, error) {
	c, err := etcdConfig(a)
	if err != nil {
		return nil, err
	}
	return etcdstore.Open(ctx, c)
}

func etcdConfig(a address) (c etcdstore.Config, err error) {
	c.Username, c.Password = a.user, a.password
	if c.TLS, err = a.takeTLS("etcds"); err != nil {
		return c, err
	}
	if c.Heartbeat, err = a.flag("heartbeat", false); err != nil {
		return c, err
	}
	for _, h := range a.hosts {
		if a.secure() {
			c.Endpoints = append(c.Endpoints, "https://"+h)
		} else {
			c.Endpoints = append(c.Endpoints, "http://"+h)
		}
	}
	if a.path != "" {
		c.Prefix = a.path + "/"
	}
	if (c.Username == "") != (c.Password == "") { // etcd's client would go in as nobody, and say nothing
		return c, bad("user and password go together: use etcd://USER:PASSWORD@HOST:2379, or password-file=FILE for the password")
	}
	return c, a.rest("ca, cert, key, server-name, password-file or heartbeat")
}
