// Package open turns a store URL into a store, for programs that want all of them. Who imports it
// links every store's client; a program that knows its store imports just that one.
//
//	etcd://[USER:PASSWORD@]HOST[:2379][,HOST…][/PREFIX]            etcds:// with TLS
//	etcd+unix:///PATH                                              the socket of `primacy dev`
//	postgres://[USER[:PASSWORD]@]HOST[:5432][,HOST…]/DATABASE      TLS by sslmode=, as libpq has
//	                                                               it
//	redis://[[USER]:PASSWORD@]HOST[:6379][,HOST…][/DB]             rediss:// with TLS
//	redis+quorum://[[USER]:PASSWORD@]HOST,HOST,HOST[/DB]           independent servers, no tokens;
//	                                                               rediss+quorum:// with TLS
//	redis+plain://[[USER]:PASSWORD@]HOST[,HOST,HOST][/DB]          the same over keys that redsync
//	                                                               and redislock understand
//	zk://[USER:PASSWORD@]HOST[:2181][,HOST…][/ROOT]                zks:// with TLS
//	k8s://[NAMESPACE]                                              Leases of Kubernetes; without
//	                                                               NAMESPACE the pod's own
//
// Options follow as a query. For every store but k8s: password-file=FILE (instead of a password in
// the URL). With TLS: ca=FILE (certificate authority), cert=FILE and key=FILE (this client's
// certificate), server-name=NAME. Of one store:
//
//	etcd      heartbeat=true (sessions of any TTL have a heartbeat: see etcdstore.Options); PREFIX
//	          is put before every key, default "primacy"
//	postgres  schema=NAME (default "primacy"), migrate=false; all others as libpq knows them:
//	          sslmode, sslrootcert, target_session_attrs, …
//	redis     prefix=NAME (default "primacy"), cluster=true, sentinel=MASTER (the hosts are
//	          sentinels), replicas=N (a write counts once N replicas have it);
//	          sentinel-user=NAME, sentinel-password-file=FILE (how sentinels know who asks)
//	quorum    prefix=NAME, max-ttl=DURATION (default 30s), guard=DURATION (a server that started
//	          less long ago does not count) or guard=off
//	zk        ROOT is the node under which all others are, default "primacy"; tick=DURATION (the
//	          servers' tickTime, if they do not tell it)
//	k8s       prefix=NAME; kubeconfig=FILE and context=NAME, if [Kubeconfig] reads them, as in
//	          the program: without them $KUBECONFIG, the pod's account or ~/.kube/config
//
// Write %XX for characters that mean something in a URL, in passwords above all: / is %2F, ? is
// %3F, @ is %40, % is %25.
package open

import (
	"context"
	"errors"
	"fmt"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/etcdstore"
	"github.com/primacy-go/primacy/k8sstore"
	"github.com/primacy-go/primacy/redisstore"
	"github.com/primacy-go/primacy/redlockstore"
	"github.com/primacy-go/primacy/zkstore"
)

// ErrURL says that a store URL cannot be used. Passwords are not in its text.
var ErrURL = errors.New("not a store URL")

// kind is what one scheme means.
type kind struct {
	port    string // of a host without one; "" where the URL names no hosts
	secure  bool
	example string
	open    func(ctx context.Context, a address) (driver.Store, error)
}

// kinds are all schemes. Filled by init, since what opens a store asks it for its example.
var kinds map[string]kind

func init() {
	etcd := opener(etcdConfig, etcdstore.Open)
	postgres := opener(postgresConfig, openPostgres)
	redis := opener(redisConfig, redisstore.Open)
	redlock := opener(redlockConfig, redlockstore.Open)
	zookeeper := opener(zkConfig, zkstore.Open)
	kubernetes := opener(k8sConfig, k8sstore.Open)
	kinds = map[string]kind{
		"etcd":          {port: "2379", example: "etcd://HOST:2379", open: etcd},
		"etcds":         {port: "2379", secure: true, example: "etcds://HOST:2379", open: etcd},
		"etcd+unix":     {example: "etcd+unix:///PATH", open: etcd},
		"postgres":      {port: "5432", example: "postgres://USER@HOST:5432/DATABASE", open: postgres},
		"postgresql":    {port: "5432", example: "postgresql://USER@HOST:5432/DATABASE", open: postgres},
		"redis":         {port: "6379", example: "redis://HOST:6379", open: redis},
		"rediss":        {port: "6379", secure: true, example: "rediss://HOST:6379", open: redis},
		"redis+quorum":  {port: "6379", example: "redis+quorum://HOST1,HOST2,HOST3", open: redlock},
		"rediss+quorum": {port: "6379", secure: true, example: "rediss+quorum://HOST1,HOST2,HOST3", open: redlock},
		"redis+plain":   {port: "6379", example: "redis+plain://HOST:6379", open: redlock},
		"rediss+plain":  {port: "6379", secure: true, example: "rediss+plain://HOST:6379", open: redlock},
		"zk":            {port: "2181", example: "zk://HOST:2181", open: zookeeper},
		"zks":           {port: "2181", secure: true, example: "zks://HOST:2181", open: zookeeper},
		"k8s":           {secure: true, example: "k8s://NAMESPACE", open: kubernetes},
	}
}

// opener returns what opens the stores of one kind.
func opener[C any, S driver.Store](config func(address) (C, error), open func(context.Context, C) (S, error),
) func(context.Context, address) (driver.Store, error) {
	return func(ctx context.Context, a address) (driver.Store, error) {
		c, err := config(a)
		if err != nil {
			return nil, err
		}
		return open(ctx, c)
	}
}

// Schemes are those that [Open] knows, in order of importance, without the ones that only add TLS
// and the socket of one machine.
var Schemes = []string{"etcd", "postgres", "redis", "redis+quorum", "redis+plain", "zk", "k8s"}

// DefaultPort returns the port of a host that is named without one, "" for an unknown scheme and
// for one without hosts.
func DefaultPort(scheme string) string { return kinds[scheme].port }

// Secure says whether a scheme is one that asks for TLS by its name.
func Secure(scheme string) bool { return kinds[scheme].secure }

// Open connects to the store that rawURL names. A store that does not answer is waited for until
// ctx ends, one that refuses connections is an error at once; both name the endpoints. A URL that
// cannot work is an ErrURL, a store that refuses us a driver.ErrRefused. Close the store after the
// sessions on it.
func Open(ctx context.Context, rawURL string) (driver.Store, error) {
	a, err := parse(rawURL)
	if err != nil {
		return nil, err
	}
	return kinds[a.scheme].open(ctx, a)
}

func bad(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrURL, fmt.Sprintf(format, args...))
}
