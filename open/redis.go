package open

import (
	"context"
	"os"
	"strings"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/redisstore"
)

func openRedis(ctx context.Context, a address) (driver.Store, error) {
	c, err := redisConfig(a)
	if err != nil {
		return nil, err
	}
	return redisstore.Open(ctx, c)
}

func redisConfig(a address) (c redisstore.Config, err error) {
	c.Addrs, c.Username, c.Password = a.hosts, a.user, a.password
	c.Prefix, _ = a.take("prefix")
	c.Sentinel, _ = a.take("sentinel")
	if err = a.sentinelLogin(&c); err != nil {
		return c, err
	}
	if c.DB, err = a.redisDB(); err != nil {
		return c, err
	}
	if c.TLS, err = a.takeTLS("rediss"); err != nil {
		return c, err
	}
	if c.Cluster, err = a.flag("cluster", false); err != nil {
		return c, err
	}
	if c.Replicas, err = a.number("replicas", 100); err != nil {
		return c, err
	}
	switch {
	case c.Cluster && c.DB != 0:
		return c, bad("a cluster has only database 0: leave /%d out", c.DB)
	case c.Cluster && c.Sentinel != "":
		return c, bad("cluster=true and sentinel= do not go together")
	case len(c.Addrs) > 1 && !c.Cluster && c.Sentinel == "":
		return c, bad("several hosts: add cluster=true, or sentinel=MASTER where they are sentinels; for independent servers use redis+quorum://")
	}
	return c, a.rest("ca, cert, key, server-name, password-file, prefix, cluster, sentinel, sentinel-user, sentinel-password-file or replicas")
}

// sentinelLogin takes how sentinels know who asks them: by users and passwords of their own.
func (a *address) sentinelLogin(c *redisstore.Config) error {
	c.SentinelUsername, _ = a.take("sentinel-user")
	file, ok := a.take("sentinel-password-file")
	if ok {
		b, err := os.ReadFile(file)
		if err != nil {
			return bad("sentinel-password-file: %v", err)
		}
		c.SentinelPassword = strings.TrimRight(string(b), "\r\n")
	}
	if (ok || c.SentinelUsername != "") && c.Sentinel == "" {
		return bad("sentinel-user and sentinel-password-file go with sentinel=MASTER")
	}
	return nil
}
