package open

import (
	"strconv"

	"github.com/primacy-go/primacy/redisstore"
)

const maxRedisDB = 1 << 16

func redisConfig(a address) (c redisstore.Config, err error) {
	c.Addrs, c.Username, c.Password = a.hosts, a.user, a.password
	c.Prefix, _ = a.take("prefix")
	c.Sentinel, _ = a.take("sentinel")
	c.SentinelUsername, _ = a.take("sentinel-user")
	var file bool
	c.SentinelPassword, file = a.secret("sentinel-password-file")
	if (file || c.SentinelUsername != "") && c.Sentinel == "" {
		a.fail("sentinel-user and sentinel-password-file go with sentinel=MASTER")
	}
	c.DB = a.redisDB()
	c.TLS = a.takeTLS("rediss")
	c.Cluster = a.flag("cluster", false)
	c.Replicas = a.number("replicas", 100)
	switch {
	case c.Cluster && c.DB != 0:
		a.fail("a cluster has only database 0: leave /%d out", c.DB)
	case c.Cluster && c.Sentinel != "":
		a.fail("cluster=true and sentinel= do not go together")
	case len(c.Addrs) > 1 && !c.Cluster && c.Sentinel == "":
		a.fail("several hosts: add cluster=true, or sentinel=MASTER where they are sentinels; for independent servers use redis+quorum://")
	}
	return c, a.rest("ca, cert, key, server-name, password-file, prefix, cluster, sentinel, sentinel-user, sentinel-password-file or replicas")
}

// redisDB reads the path, which is the number of a database.
func (a *address) redisDB() int {
	if a.path == "" {
		return 0
	}
	n, err := strconv.Atoi(a.path)
	if err != nil || n < 0 || n > maxRedisDB {
		a.fail("what follows the hosts is not the number of a database: use %s/0, and prefix=NAME for a prefix", a.example())
	}
	return n
}
