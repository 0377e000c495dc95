package open

import "github.com/primacy-go/primacy/zkstore"

func zkConfig(a address) (c zkstore.Config, err error) {
	c.Servers, c.Username, c.Password = a.hosts, a.user, a.password
	if a.path != "" {
		c.Root = "/" + a.path
	}
	c.TLS = a.takeTLS("zks")
	c.Tick = a.duration("tick")
	if (c.Username == "") != (c.Password == "") {
		a.fail("user and password go together: use zk://USER:PASSWORD@HOST:2181, or password-file=FILE for the password")
	}
	return c, a.rest("ca, cert, key, server-name, password-file or tick")
}
