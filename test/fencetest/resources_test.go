//go:build linux

package fencetest

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	_ "modernc.org/sqlite"

	"github.com/primacy-go/primacy/etcdstore"
	"github.com/primacy-go/primacy/fence"
	"github.com/primacy-go/primacy/fence/etcdfence"
	"github.com/primacy-go/primacy/fence/filefence"
	"github.com/primacy-go/primacy/fence/httpfence"
	"github.com/primacy-go/primacy/fence/redisfence"
	"github.com/primacy-go/primacy/fence/sqlfence"
)

// places is where the resources are. It travels to the leaders' processes as JSON.
type places struct {
	Etcd, Postgres, Redis, HTTP, Dir string
}

// resource is one thing that leaders write: a value behind a fence, and beside it the control, a
// value without.
type resource struct {
	name  string
	raise func(ctx context.Context) error               // what a new leader does before its first read
	write func(ctx context.Context, value string) error // behind the fence
	plain func(ctx context.Context, value string) error // the control
	read  func(ctx context.Context) (fenced, control string, err error)
}

// upsert is the write to both SQL databases.
const upsert = `INSERT INTO v (k, v) VALUES ($1, $2) ON CONFLICT (k) DO UPDATE SET v = excluded.v`

const (
	fencedKey  = "{fencetest}:fenced"
	controlKey = "{fencetest}:control"
)

func ping(t testing.TB, url string) error {
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	// a server that is just starting may take a connection and never answer on it
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	return db.PingContext(ctx)
}

func sqliteURL(dir string) string {
	return "file:" + dir + "/db.sqlite?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)"
}

// dialAll returns all resources for one process, closed with it.
func dialAll(p places, t fence.Term, store *etcdstore.Store) ([]resource, error) {
	ec, err := clientv3.New(clientv3.Config{Endpoints: []string{p.Etcd}, DialTimeout: 5 * time.Second,
		Logger: zap.NewNop()})
	if err != nil {
		return nil, err
	}
	pg, err := sql.Open("pgx", p.Postgres)
	if err != nil {
		return nil, err
	}
	native, err := pgx.Connect(context.Background(), p.Postgres)
	if err != nil {
		return nil, err
	}
	lite, err := sql.Open("sqlite", sqliteURL(p.Dir))
	if err != nil {
		return nil, err
	}
	s := fence.Of(t)
	if store != nil { // nil: for reading only
		s = s.From(store)
	}
	rc := redis.NewClient(&redis.Options{Network: "unix", Addr: p.Redis})
	return []resource{etcdClaim(ec, store, t), etcdRegister(ec, s), sqlDB("PostgreSQL", pg, sqlfence.Fence{}, s),
		pgxDB(native, s),
		sqlDB("SQLite", lite, sqlfence.Fence{Dialect: sqlfence.SQLite}, s), redisDB(rc, s), httpServer(p.HTTP, t, s),
		files(p.Dir, s)}, nil
}

func etcdClaim(c *clientv3.Client, store *etcdstore.Store, t fence.Term) resource {
	var guard *etcdfence.Guard
	r := etcdKeys("etcd", c, func() *etcdfence.Guard { return guard })
	r.raise = func(ctx context.Context) (err error) { guard, err = etcdfence.Bind(ctx, c, store, t); return err }
	return r
}

func etcdRegister(c *clientv3.Client, s fence.Stamp) resource {
	var guard *etcdfence.Guard
	r := etcdKeys("etcd register", c, func() *etcdfence.Guard { return guard })
	r.raise = func(ctx context.Context) (err error) { guard, err = etcdfence.Raise(ctx, c, "register", s); return err }
	return r
}

func etcdKeys(name string, c *clientv3.Client, guard func() *etcdfence.Guard) resource {
	get := func(ctx context.Context, key string) (string, error) {
		resp, err := c.Get(ctx, key)
		if err != nil || len(resp.Kvs) == 0 {
			return "", err
		}
		return string(resp.Kvs[0].Value), nil
	}
	return resource{name: name,
		write: func(ctx context.Context, v string) error {
			_, err := guard().Txn(ctx).Then(clientv3.OpPut(name+"/fenced", v)).Commit()
			return err
		},
		plain: func(ctx context.Context, v string) error { _, err := c.Put(ctx, name+"/control", v); return err },
		read: func(ctx context.Context) (string, string, error) {
			return both(func(what string) (string, error) { return get(ctx, name+"/"+what) })
		}}
}

// both reads the two values of a resource.
func both(get func(what string) (string, error)) (fenced, control string, err error) {
	if fenced, err = get("fenced"); err != nil {
		return "", "", err
	}
	control, err = get("control")
	return fenced, control, err
}

func sqlDB(name string, db *sql.DB, f sqlfence.Fence, s fence.Stamp) resource {
	s.Name += "/" + name // PostgreSQL has two resources, each with its row
	put := func(ctx context.Context, tx interface {
		ExecContext(context.Context, string, ...any) (sql.Result, error)
	}, what, v string) error {
		_, err := tx.ExecContext(ctx, upsert, name+"/"+what, v)
		return err
	}
	return resource{name: name,
		raise: func(ctx context.Context) error { return f.Do(ctx, db, s, func(*sql.Tx) error { return nil }) },
		write: func(ctx context.Context, v string) error {
			return f.Do(ctx, db, s, func(tx *sql.Tx) error { return put(ctx, tx, "fenced", v) })
		},
		plain: func(ctx context.Context, v string) error { return put(ctx, db, "control", v) },
		read: func(ctx context.Context) (string, string, error) {
			return both(func(what string) (v string, err error) {
				err = db.QueryRowContext(ctx, `SELECT coalesce(max(v), '') FROM v WHERE k = $1`, name+"/"+what).Scan(&v)
				return v, err
			})
		}}
}

func pgxDB(c *pgx.Conn, s fence.Stamp) resource {
	s.Name += "/pgx"
	in := func(ctx context.Context, do func(tx pgx.Tx) error) error {
		return pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
			if err := sqlfence.RaisePgx(ctx, sqlfence.Fence{}, tx, s); err != nil {
				return err
			}
			return do(tx)
		})
	}
	return resource{name: "pgx",
		raise: func(ctx context.Context) error { return in(ctx, func(pgx.Tx) error { return nil }) },
		write: func(ctx context.Context, v string) error {
			return in(ctx, func(tx pgx.Tx) error { _, err := tx.Exec(ctx, upsert, "pgx/fenced", v); return err })
		},
		plain: func(ctx context.Context, v string) error {
			_,
				err := c.Exec(ctx, upsert, "pgx/control", v)
			return err
		},
		read: func(ctx context.Context) (string, string, error) {
			return both(func(what string) (v string, err error) {
				err = c.QueryRow(ctx, `SELECT coalesce(max(v), '') FROM v WHERE k = $1`, "pgx/"+what).Scan(&v)
				return v, err
			})
		}}
}

func redisDB(c *redis.Client, s fence.Stamp) resource {
	keys := redisfence.Fence{Key: "{fencetest}:fence"}
	return resource{name: "Redis",
		raise: func(ctx context.Context) error { return redisfence.Raise(ctx, c, keys, s) },
		write: func(ctx context.Context, v string) error {
			_, err := redisfence.Call(ctx, c, keys, s, "SET", fencedKey, v)
			return err
		},
		plain: func(ctx context.Context, v string) error { return c.Set(ctx, controlKey, v, 0).Err() },
		read: func(ctx context.Context) (string, string, error) {
			vs, err := c.MGet(ctx, fencedKey, controlKey).Result()
			if err != nil {
				return "", "", err
			}
			return fmt.Sprint(vs[0]), fmt.Sprint(vs[1]), nil
		}}
}

func httpServer(url string, t fence.Term, s fence.Stamp) resource {
	// Check is left out of the transport: the leader has asked it already, before it was stopped.
	client := &http.Client{Transport: &httpfence.Transport{Stamp: s}}
	put := func(ctx context.Context, c *http.Client, what, v string) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodPut, url+what, strings.NewReader(v))
		if err != nil {
			return err
		}
		resp, err := c.Do(r)
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("status %s", resp.Status)
		}
		return nil
	}
	return resource{name: "HTTP",
		raise: func(ctx context.Context) error { return httpfence.Raise(ctx, client, url+"/fenced") },
		write: func(ctx context.Context, v string) error { return put(ctx, client, "/fenced", v) },
		plain: func(ctx context.Context, v string) error { return put(ctx, http.DefaultClient, "/control", v) },
		read: func(context.Context) (string, string, error) {
			return both(func(what string) (string, error) {
				resp, err := http.Get(url + "/" + what)
				if err != nil {
					return "", err
				}
				defer resp.Body.Close()
				text, err := io.ReadAll(resp.Body)
				return string(text), err
			})
		}}
}

func files(dir string, s fence.Stamp) resource {
	return resource{name: "file",
		raise: func(ctx context.Context) error { return filefence.Raise(ctx, dir+"/fenced", s) },
		write: func(ctx context.Context, v string) error {
			return filefence.Write(ctx, dir+"/fenced", []byte(v), 0o600, s)
		},
		plain: func(_ context.Context, v string) error { return os.WriteFile(dir+"/control", []byte(v), 0o600) },
		read: func(context.Context) (string, string, error) {
			return both(func(what string) (string, error) {
				b, err := os.ReadFile(dir + "/" + what)
				return string(b),
					err
			})
		}}
}
