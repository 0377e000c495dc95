package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/embedded"
	"github.com/primacy-go/primacy/cmd/internal/kubeconfig"
	"github.com/primacy-go/primacy/cmd/internal/speaks"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/etcdstore"
	"github.com/primacy-go/primacy/internal/core"
	"github.com/primacy-go/primacy/open"
)

const embeddedScheme = "embedded:"

// noLog takes what go-redis would write to stderr by itself: each error comes back from its call
// too.
type noLog struct{}

func (noLog) Printf(context.Context, string, ...any) {}

func init() {
	redis.SetLogger(noLog{})
	open.Kubeconfig = kubeconfig.Load
}

// openStore opens the store that --store names and returns what closes it. It gives up after
// --timeout, and at once where waiting does not help.
func (a *app) openStore(ctx context.Context) (driver.Store, func(), error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	if a.store == "" || strings.HasPrefix(a.store, embeddedScheme) {
		return a.openEmbedded(ctx)
	}
	st, err := a.reach(ctx)
	switch {
	case errors.Is(err, open.ErrURL) && !knownScheme(a.store):
		return nil, nil, fmt.Errorf("--store: %w, or embedded:DIR", err)
	case errors.Is(err, open.ErrURL):
		return nil, nil, fmt.Errorf("--store: %w", err)
	case err != nil:
		return nil, nil, &exitError{exitUnreachable, a.unreachable(ctx, err)}
	}
	a.warn(st)
	return st, func() { _ = st.Close() }, nil
}

// withStore opens the store, without a lease, and has do use it, for --timeout at most. An error
// that is one of no is an answer: it exits with 1.
func withStore(ctx context.Context, a *app, do func(context.Context, driver.Store) error, no ...error) error {
	st, done, err := a.openStore(ctx)
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	err = do(ctx, st)
	switch {
	case slices.ContainsFunc(no, func(answer error) bool { return errors.Is(err, answer) }):
		return &exitError{exitNo, err}
	case errors.Is(err, context.DeadlineExceeded):
		return &exitError{exitUnreachable, a.unreachable(ctx, err)}
	}
	return err
}

// errWrongServer says that a server speaks another protocol than the store URL says.
var errWrongServer = errors.New("wrong server")

// reach opens the store, again and again while nobody is there: a container may start before its
// etcd. What no later try would change ends it at once. People are told once that they wait.
func (a *app) reach(ctx context.Context) (driver.Store, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var once sync.Once
	tell := func(why string) {
		once.Do(func() { a.say("%s; waiting for the store for up to %v (--timeout)", why, a.timeout) })
	}
	silent := time.AfterFunc(silence, func() {
		if err := a.wrongServer(ctx); err != nil {
			cancel(err)
		} else if end, ok := ctx.Deadline(); !ok || time.Until(end) > silence {
			tell("the store does not answer yet") // who is about to give up says so in one line
		}
	})
	defer silent.Stop()
	var last error // of a try that was not cut short by the end of the time
	for tries := 1; ; tries++ {
		st, err := open.Open(ctx, a.store)
		if err == nil {
			return st, nil
		}
		if wrong := context.Cause(ctx); errors.Is(wrong, errWrongServer) {
			return nil, wrong
		}
		if errors.Is(err, open.ErrURL) || errors.Is(err, primacy.ErrRefused) {
			return nil, err
		}
		if ctx.Err() != nil {
			return nil, cmp.Or(last, err)
		}
		last = err
		if wrong := a.wrongServer(ctx); wrong != nil {
			return nil, wrong
		}
		tell(oneLine(err))
		d := core.Pause(tries)
		pause(ctx, d/2+rand.N(d/2+1))
		if ctx.Err() != nil {
			return nil, err
		}
	}
}

// silence is how long a store may not answer before people are told.
const silence = time.Second

// wrongServer finds out whether one of the store's servers speaks another protocol. A server that
// does not say what it speaks may be the right one, and busy.
func (a *app) wrongServer(ctx context.Context) error {
	want := speaks.Of(a.store)
	scheme, _, _ := strings.Cut(a.store, "://")
	kind, form, _ := strings.Cut(scheme, "+")
	if form != "" {
		form = "+" + form
	}
	for _, host := range speaks.Hosts(a.store) {
		what := ""
		switch got := speaks.At(ctx, host); {
		// PostgreSQL's URL says by sslmode whether it is TLS, and not by its scheme.
		case got == "", got == want && !open.Secure(scheme),
			got == speaks.TLS && (open.Secure(scheme) || want == speaks.PostgreSQL):
			continue
		case got == want:
			what = fmt.Sprintf("%s speaks %s without TLS: use %s%s://", host, got, strings.TrimSuffix(kind, "s"), form)
		case got == speaks.TLS:
			what = fmt.Sprintf("%s speaks TLS: use %ss%s://", host, kind, form)
		default:
			what = fmt.Sprintf("%s speaks %s, not %s: is the port in --store right?", host, got, want)
		}
		return fmt.Errorf("%w: %s", errWrongServer, what)
	}
	return nil
}

// knownScheme reports whether a store URL has one of open's schemes.
func knownScheme(url string) bool {
	scheme, _, _ := strings.Cut(url, "://")
	return open.DefaultPort(scheme) != "" || scheme == "k8s"
}

// embeddedDir is the directory of the embedded store that --store names.
func (a *app) embeddedDir() (string, error) {
	switch dir, ok := strings.CutPrefix(a.store, embeddedScheme); {
	case a.store == "":
		// Who named a store by a variable that is empty would lead beside the others.
		if v, set := os.LookupEnv(variable("store")); set && v == "" || slices.Contains(a.typed, "store") {
			return "", errors.New("the store is empty (--store or PRIMACY_STORE): name one, or leave it out for " +
				"the embedded store, which this user's processes on this machine share")
		}
		return embedded.DefaultDir()
	case !ok:
		return "", fmt.Errorf("--store %q: here it must be embedded:DIR", a.store)
	default:
		if dir = strings.TrimPrefix(dir, "//"); dir == "" {
			return embedded.DefaultDir()
		}
		return filepath.Abs(dir)
	}
}

func (a *app) openEmbedded(ctx context.Context) (driver.Store, func(), error) {
	dir, err := a.embeddedDir()
	if err != nil {
		return nil, nil, err
	}
	node, err := embedded.Open(ctx, dir, embedded.Options{Logger: a.logger()})
	if err != nil {
		return nil, nil, &exitError{exitUnreachable, err}
	}
	go endWithout(node, a.stderr)
	st, err := etcdstore.Open(ctx, etcdstore.Config{Endpoints: []string{node.Endpoint()}})
	if err != nil {
		_ = node.Close()
		return nil, nil, &exitError{exitUnreachable, a.unreachable(ctx, err)}
	}
	if a.store == "" && a.stays { // on several machines that is one leader on each
		a.say("no store is given: only this user's processes on this machine exclude each other (%s%s)", embeddedScheme,
			clean(dir))
	}
	return st, func() { _ = st.Close(); _ = node.Close() }, nil
}

func (a *app) warn(st driver.Store) {
	for _, w := range st.Caps().Warnings {
		a.say("warning: %s", w)
	}
}

// unreachable says how long was tried, where the time given is what ended it.
func (a *app) unreachable(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("store unreachable for %v: %w", a.timeout, err)
	}
	return err
}

// openSession opens the store and a session on it. With lease, it is granted now: what is wrong
// shows before anything starts.
func (a *app) openSession(ctx context.Context, o primacy.Options, lease bool) (
	*primacy.Session, driver.Store, func(), error,
) {
	starting, cancel := context.WithTimeout(ctx, a.timeout) // for both, the store and the lease
	defer cancel()
	st, closeStore, err := a.openStore(starting)
	if err != nil {
		return nil, nil, nil, err
	}
	o.ID, o.TTL, o.Logger = a.id, a.ttl, a.logger()
	s, err := primacy.NewSession(st, &o)
	if err != nil {
		closeStore()
		return nil, nil, nil, err
	}
	done := func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
		defer cancel()
		_ = s.Close(ctx) // if it fails the lease runs out by itself
		closeStore()
	}
	if !lease {
		return s, st, done, nil
	}
	if err := s.Ready(starting); err != nil {
		done()
		return nil, nil, nil, &exitError{exitUnreachable, a.unreachable(starting, err)}
	}
	return s, st, done, nil
}

// storesTopic is what `primacy help stores` shows: no verb, but what --store may say.
func storesTopic() *cobra.Command {
	return &cobra.Command{
		Use:   "stores",
		Short: "the stores, and their URLs for --store",
		Long: `URLs for --store, or PRIMACY_STORE:

  embedded:[DIR]                                        etcd in this program, for one machine; the default
  etcd://[USER:PASSWORD@]HOST[:2379][,HOST…][/PREFIX]   etcds:// with TLS
  etcd+unix:///PATH                                     the socket of primacy dev
  postgres://[USER[:PASSWORD]@]HOST[:5432]/DATABASE     TLS by sslmode=, and whatever else libpq knows; schema=NAME
  redis://[[USER]:PASSWORD@]HOST[:6379][/DB]            rediss:// with TLS; cluster=true, sentinel=MASTER, replicas=N,
                                                        prefix=NAME, sentinel-user=NAME, sentinel-password-file=FILE
  redis+quorum://HOST,HOST,HOST[/DB]                    independent servers, a majority decides; no tokens, no order
  redis+plain://HOST[/DB]                               the same with the keys of redsync and redislock
  zk://[USER:PASSWORD@]HOST[:2181][,HOST…][/ROOT]       zks:// with TLS
  k8s://[NAMESPACE]                                     Leases of Kubernetes, from a pod, or by kubeconfig=FILE,
                                                        context=NAME, $KUBECONFIG, ~/.kube/config; prefix=NAME

Options follow as a query: password-file=FILE, and with TLS ca=FILE, cert=FILE, key=FILE, server-name=NAME
(PostgreSQL has libpq's own). Write %XX for / ? @ % in user and password: / is %2F, ? is %3F, @ is %40, % is
%25.

'primacy doctor --store URL' says what a store can promise and what it cannot.`,
	}
}

func schemaCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the SQL that a PostgreSQL store needs",
		Long: `Print the SQL that creates what --store postgres://… needs, without connecting. It is for a
database in which the program's own user may not create tables. If the URL has a user, it also gives that user
the rights that the program needs; the user must exist. A user who may runs it, in one transaction:

  primacy schema --store postgres://app@db/app | psql -1 -v ON_ERROR_STOP=1 postgres://admin@db/app`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if a.store == "" || strings.HasPrefix(a.store, embeddedScheme) {
				return errors.New("schema: give --store postgres://…: the embedded store has no schema")
			}
			sql, err := open.Schema(a.store)
			if err != nil {
				return fmt.Errorf("--store: %w", err)
			}
			_, err = fmt.Fprint(a.stdout, sql)
			return err
		},
	}
}

// schemes are the beginnings of store URLs that a shell offers.
func schemes() []string {
	var all []string
	for _, s := range open.Schemes {
		all = append(all, s+"://")
	}
	return append(all, "etcds://", "etcd+unix://", "rediss://", "zks://", embeddedScheme)
}

func devCommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "dev [--] [COMMAND...]",
		Short: "Run a store on this machine, for trying things out",
		Long: `Run the embedded store in the foreground and print the PRIMACY_STORE that others on this machine
use: this program, and what is built with the library (open.Open). With COMMAND: run it with
PRIMACY_STORE set, and stop the store when it ends. Only this user can reach the store, and only
while dev runs; what it holds stays in its folder. For a store that goes on in the next process, give all of them
embedded:DIR instead.`,
		RunE: func(cmd *cobra.Command, args []string) error { return runDev(cmd.Context(), a, args) },
	}
	c.Flags().SetInterspersed(false)
	return c
}

func runDev(ctx context.Context, a *app, args []string) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	dir, err := a.embeddedDir()
	if err != nil {
		return err
	}
	openCtx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	node, err := embedded.Open(openCtx, dir, embedded.Options{Logger: a.logger()})
	if err != nil && ctx.Err() != nil {
		return nil // stopped by a signal while it waited for the store
	}
	if err != nil {
		return &exitError{exitUnreachable, err}
	}
	defer node.Close()
	ctx, end := context.WithCancel(ctx)
	defer end()
	go func() { <-node.Done(); end() }()
	store, err := reachable(openCtx, node)
	said := ", in Go open.Open its URL"
	if errors.Is(err, open.ErrURL) { // the path is too long for a socket: this program finds it by its folder
		store, said, err = embeddedScheme+dir, "", nil
	}
	if err != nil {
		return err
	}
	if len(args) > 0 {
		err := runWithStore(ctx, a, store, args)
		if lost := node.Err(); lost != nil {
			return &exitError{exitUnreachable, lost}
		}
		return err
	}
	fmt.Fprintf(a.stdout, "PRIMACY_STORE=%s\n", store)
	a.say("the store runs in this process; others on this machine: export the line above%s. Stop with ^C.", said)
	<-ctx.Done()
	if lost := node.Err(); lost != nil {
		return &exitError{exitUnreachable, lost}
	}
	return nil
}

// reachable returns the URL by which other processes reach the store of a node. It has tried it.
func reachable(ctx context.Context, node *embedded.Node) (string, error) {
	at := url.URL{Scheme: "etcd+unix", Path: node.Socket()}
	store := strings.ReplaceAll(at.String(), "@", "%40") // which package open takes for the end of a password
	st, err := open.Open(ctx, store)
	if err != nil {
		return "", fmt.Errorf("%s: %w", store, err)
	}
	return store, st.Close()
}

// runWithStore runs args as a plain child that gets SIGTERM when we are asked to stop.
func runWithStore(ctx context.Context, a *app, store string, args []string) error {
	c := exec.CommandContext(ctx, args[0], args[1:]...)
	c.Stdin, c.Stdout, c.Stderr = a.stdin, a.stdout, a.stderr
	c.Env = append(os.Environ(), "PRIMACY_STORE="+store)
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.WaitDelay = 5 * time.Second
	err := c.Run()
	var exit *exec.ExitError
	switch {
	case c.ProcessState != nil && c.ProcessState.Success():
		return nil // also when it was asked to stop: err is the context's then
	case errors.As(err, &exit):
		if s := exit.Sys().(syscall.WaitStatus); s.Signaled() {
			return &exitError{code: 128 + int(s.Signal())}
		}
		return &exitError{code: exit.ExitCode()}
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, os.ErrNotExist):
		return fail(127, "command %q was not found", args[0])
	case errors.Is(err, os.ErrPermission):
		return fail(126, "command %q is not executable", args[0])
	}
	return err
}
