package open

import (
	"strings"

	"github.com/primacy-go/primacy/redlockstore"
)

func redlockConfig(a address) (c redlockstore.Config, err error) {
	c.Addrs, c.Username, c.Password = a.hosts, a.user, a.password
	c.Plain = strings.HasSuffix(a.scheme, "+plain")
	known := "ca, cert, key, server-name, password-file, max-ttl, guard or prefix"
	if c.Plain { // names are the keys
		known = strings.Replace(known, ", guard or prefix", " or guard", 1)
	} else {
		c.Prefix, _ = a.take("prefix")
	}
	c.DB = a.redisDB()
	c.TLS = a.takeTLS(strings.Replace(a.scheme, "redis+", "rediss+", 1))
	c.MaxTTL = a.duration("max-ttl")
	// For how long after its start a server does not count; below 0: off.
	if v := a.query["guard"]; len(v) > 0 && v[len(v)-1] == "off" {
		a.take("guard")
		c.Guard = -1
	} else {
		c.Guard = a.duration("guard")
	}
	return c, a.rest(known)
}
