package open

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/redlockstore"
)

const maxRedisDB = 1 << 16

func openRedlock(ctx context.Context, a address) (driver.Store, error) {
	c, err := redlockConfig(a)
	if err != nil {
		return nil, err
	}
	return redlockstore.Open(ctx, c)
}

func redlockConfig(a address) (c redlockstore.Config, err error) {
	c.Addrs, c.Username, c.Password = a.hosts, a.user, a.password
	c.Plain = strings.HasSuffix(a.scheme, "+plain")
	known := "ca, cert, key, server-name, password-file, max-ttl, guard or prefix"
	if c.Plain { // names are the keys
		known = strings.Replace(known, ", guard or prefix", " or guard", 1)
	} else {
		c.Prefix, _ = a.take("prefix")
	}
	if c.DB, err = a.redisDB(); err != nil {
		return c, err
	}
	if c.TLS, err = a.takeTLS(strings.Replace(a.scheme, "redis+", "rediss+", 1)); err != nil {
		return c, err
	}
	if c.MaxTTL, err = a.duration("max-ttl"); err != nil {
		return c, err
	}
	if c.Guard, err = a.guard(); err != nil {
		return c, err
	}
	return c, a.rest(known)
}

// guard reads for how long after its start a server of a quorum does not count, below 0 for off.
func (a *address) guard() (time.Duration, error) {
	if v := a.query["guard"]; len(v) > 0 && v[len(v)-1] == "off" {
		a.take("guard")
		return -1, nil
	}
	return a.duration("guard")
}

// redisDB reads the path, which is the number of a database.
func (a address) redisDB() (int, error) {
	if a.path == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(a.path)
	if err != nil || n < 0 || n > maxRedisDB {
		return 0, bad("what follows the hosts is not the number of a database: use %s/0, and prefix=NAME for a prefix", a.example())
	}
	return n, nil
}
