package open

import (
	"net/url"

	"github.com/primacy-go/primacy/etcdstore"
)

func etcdConfig(a address) (c etcdstore.Config, err error) {
	c.Username, c.Password = a.user, a.password
	c.TLS = a.takeTLS("etcds")
	c.Heartbeat = a.flag("heartbeat", false)
	if a.onSocket() {
		u := url.URL{Scheme: "unix", Path: "/" + a.path}
		c.Endpoints, a.path = []string{u.String()}, "" // no prefix of its own
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
		a.fail("user and password go together: use etcd://USER:PASSWORD@HOST:2379, or password-file=FILE for the password")
	}
	return c, a.rest("ca, cert, key, server-name, password-file or heartbeat")
}
