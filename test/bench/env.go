package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/k8stest"
)

// Env is where a run measures: servers of one store, and how often.
type Env struct {
	Kind    string            // the store, as in Contender.Store
	Cluster *etcdtest.Cluster // of etcd; nil on another store
	kube    *k8stest.Server   // of Kubernetes
	servers servers
	Members int
	Reps    int
	Sizes   []int
	Verbose bool
	options etcdtest.Options
	box     *box
	names   atomic.Int64
}

// Name returns a name that nobody has used before, so that no row sees what another left behind.
func (e *Env) Name(prefix string) string {
	return prefix + "-" + strconv.Itoa(os.Getpid()) + "-" + strconv.FormatInt(e.names.Add(1), 10)
}

// Names returns n of them.
func (e *Env) Names(prefix string, n int) []string {
	p, list := e.Name(prefix), make([]string, n)
	for i := range list {
		list[i] = p + "-" + strconv.Itoa(i)
	}
	return list
}

func (e *Env) logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// debugf says what each slice gave, with -v.
func (e *Env) debugf(format string, args ...any) {
	if e.Verbose {
		e.logf(format, args...)
	}
}

// dial opens one process of a contender, closed at the latest with ctx.
func (e *Env) dial(ctx context.Context, c *Contender) (Process, error) {
	return c.Dial(ctx, e.servers.endpoints())
}

// box is what the servers are started in: they were made for tests, and this program is none. What
// a test would be failed for ends the run.
type box struct {
	testing.TB
	dir     string
	failed  bool // then the servers' logs are shown in the end
	made    int
	cleanup []func()
}

// fatal is what box panics with.
type fatal string

func (b *box) Helper()                         {}
func (b *box) Failed() bool                    { return b.failed }
func (b *box) Cleanup(f func())                { b.cleanup = append(b.cleanup, f) }
func (b *box) Logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
func (b *box) Fatal(args ...any)               { panic(fatal(fmt.Sprint(args...))) }
func (b *box) Fatalf(format string, args ...any) {
	panic(fatal(fmt.Sprintf(format, args...)))
}
func (b *box) Errorf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
func (b *box) Log(args ...any)                   { fmt.Fprintln(os.Stderr, args...) }
func (b *box) Error(args ...any)                 { fmt.Fprintln(os.Stderr, args...) }
func (b *box) Skipf(format string, args ...any)  { b.Fatalf(format, args...) }
func (b *box) Name() string                      { return "bench" }

func (b *box) TempDir() string {
	b.made++
	dir := filepath.Join(b.dir, strconv.Itoa(b.made))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		b.Fatal(err)
	}
	return dir
}

// close undoes all, last first.
func (b *box) close() {
	for i := len(b.cleanup) - 1; i >= 0; i-- {
		b.cleanup[i]()
	}
	b.cleanup = nil
	os.RemoveAll(b.dir)
}

// catch turns the box's panic into an error.
func catch(err *error) {
	switch p := recover().(type) {
	case nil:
	case fatal:
		*err = fmt.Errorf("%s", string(p))
	default:
		panic(p)
	}
}

// EnvOptions say what to measure on.
type EnvOptions struct {
	Store      string // a key of stores
	Members    int
	Namespaces bool   // each member in a network namespace of its own
	Slow       bool   // each fdatasync takes 2 ms longer
	Dir        string // where the servers keep their data; empty: the system's folder for temporary files
	Reps       int
	Sizes      []int
	Verbose    bool
}

// start runs the servers.
func start(o EnvOptions) (e *Env, err error) {
	if o.Dir != "" {
		os.Setenv("TMPDIR", o.Dir) // servers that need a folder which other users can reach make it there
	}
	dir, err := os.MkdirTemp(o.Dir, "primacy-bench-")
	if err != nil {
		return nil, err
	}
	b := &box{dir: dir}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	defer catch(&err)
	e = &Env{Members: o.Members, Reps: o.Reps, Sizes: o.Sizes, Verbose: o.Verbose, box: b}
	k := stores[o.Store]
	e.Kind = k.kind
	e.servers, err = k.start(e, o)
	return e, err
}

// startEtcd runs a cluster.
func startEtcd(e *Env, o EnvOptions) (servers, error) {
	if o.Namespaces {
		nw, err := etcdtest.TryNetwork(e.box, o.Members)
		if err != nil {
			return servers{}, fmt.Errorf("network namespaces (Linux, root, ip(8)): %w", err)
		}
		e.options = nw.Options(e.options)
	}
	if o.Slow {
		slow, err := slowServer(e.box)
		if err != nil {
			return servers{}, err
		}
		e.options.Wrap = instead(slow, e.options.Wrap)
	}
	e.Cluster = etcdtest.StartCluster(e.box, o.Members, e.options)
	return etcdServers(e.Cluster, fmt.Sprintf("etcd %s, %d member(s)", etcdtest.Newest, o.Members)), nil
}

// instead starts another program than the one asked for.
func instead(program string, wrap func(int, []string) []string) func(int, []string) []string {
	return func(member int, cmd []string) []string {
		cmd = append([]string{program}, cmd[1:]...)
		if wrap != nil {
			cmd = wrap(member, cmd)
		}
		return cmd
	}
}

func (e *Env) close() { e.box.close() }

// three returns a cluster of three members: this one, or another that its caller closes.
func (e *Env) three() (cluster *etcdtest.Cluster, closeIt func(), err error) {
	if e.Members == 3 {
		return e.Cluster, func() {}, nil
	}
	dir, err := os.MkdirTemp(filepath.Dir(e.box.dir), "primacy-bench-")
	if err != nil {
		return nil, nil, err
	}
	b := &box{dir: dir}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	defer catch(&err)
	return etcdtest.StartCluster(b, 3, etcdtest.Options{}), b.close, nil
}

// sleep waits, or returns why not.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
