package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/k8stest"
	"github.com/primacy-go/primacy/internal/proxy"
	"github.com/primacy-go/primacy/internal/servertest"
)

// settings are those of an operator that is a process of its own.
type settings struct {
	URL     string
	CA      []byte
	JSON    bool          // the server does not speak protobuf
	Plain   bool          // with the election of controller-runtime
	Lease   times         // zero: as Kubernetes has them
	Takes   time.Duration // what the leader's work takes to stop
	Hangs   bool          // it never does
	Lingers time.Duration // what others' work takes to stop
	Patient time.Duration // GracefulShutdownTimeout
	Hasty   bool          // the elector in the manager gives up at once
}

type times struct{ Duration, Deadline, Retry time.Duration }

const variable = "PRIMACY_TEST_OPERATOR"

func TestMain(m *testing.M) {
	text := os.Getenv(variable)
	if text == "" {
		os.Exit(m.Run())
	}
	var s settings
	err := json.Unmarshal([]byte(text), &s)
	if err == nil {
		err = s.operate()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// say writes what happened, and when on the boot clock.
func say(what string) { fmt.Printf("@ %d %s\n", boottime.Now(), what) }

// operate is the process: the example's manager, with a runnable that tells when it runs.
func (s settings) operate() error {
	ctrl.SetLogger(zap.New())
	c := &rest.Config{Host: s.URL, BearerToken: k8stest.UserToken, TLSClientConfig: rest.TLSClientConfig{CAData: s.CA}}
	if s.JSON {
		c.ContentType, c.AcceptContentTypes = "application/json", "application/json"
	}
	mgr, lead, err := newManager(c, k8stest.Namespace, func(o *ctrl.Options) {
		o.Metrics.BindAddress = "0"
		o.Cache.ReaderFailOnMissingInformer = true
		if s.Patient > 0 {
			o.GracefulShutdownTimeout = &s.Patient
		}
		if s.Hasty {
			o.LeaseDuration, o.RenewDeadline, o.RetryPeriod = ptr.To[time.Duration](3), ptr.To[time.Duration](2),
				ptr.To[time.Duration](1)
		}
		if s.Plain {
			*o = ctrl.Options{Metrics: o.Metrics, Cache: o.Cache, LeaderElection: true, LeaderElectionID: "operator",
				LeaderElectionNamespace: k8stest.Namespace, LeaderElectionReleaseOnCancel: true,
				Controller:              config.Controller{EnableWarmup: ptr.To(true)},
				GracefulShutdownTimeout: o.GracefulShutdownTimeout}
		}
		if t := s.Lease; s.Plain && t.Duration > 0 {
			o.LeaseDuration, o.RenewDeadline, o.RetryPeriod = &t.Duration, &t.Deadline, &t.Retry
		}
	})
	if err != nil {
		return err
	}
	if t := s.Lease; t.Duration > 0 {
		lead.Config.LeaseDuration, lead.Config.RenewDeadline, lead.Config.RetryPeriod = t.Duration, t.Deadline, t.Retry
	}
	leaders := manager.RunnableFunc(func(ctx context.Context) error {
		say(fmt.Sprintf("%s under token %d", begins, lead.Token()))
		<-ctx.Done()
		say(asked)
		if s.Hangs {
			select {}
		}
		time.Sleep(s.Takes)
		say(ended)
		return nil
	})
	if err := errors.Join(mgr.Add(leaders), mgr.Add(everywhere(func(ctx context.Context) error {
		for ctx.Err() == nil {
			var all coordinationv1.LeaseList
			// The cache knows of them only if the controller's source has asked before, and may not
			// have them yet.
			if err := mgr.GetCache().List(ctx, &all, client.InNamespace(k8stest.Namespace)); err == nil {
				if _, err := mgr.GetCache().GetInformer(ctx, &coordinationv1.Lease{}); err != nil {
					return err
				}
				say(filled)
				break
			} else if missing := (&cache.ErrResourceNotCached{}); !errors.As(err, &missing) {
				return err
			}
			time.Sleep(5 * time.Millisecond)
		}
		<-ctx.Done()
		time.Sleep(s.Lingers)
		return nil
	}))); err != nil {
		return err
	}
	ctx := ctrl.SetupSignalHandler()
	if s.Plain {
		return mgr.Start(ctx)
	}
	return lead.Run(ctx, mgr.Start)
}

// everywhere is a runnable that needs no leader.
type everywhere func(context.Context) error

func (e everywhere) Start(ctx context.Context) error { return e(ctx) }
func (everywhere) NeedLeaderElection() bool          { return false }

// operator is a process with an operator in it.
type operator struct {
	servertest.Process
	t    *testing.T
	log  string
	path *proxy.Proxy
}

// start starts an operator behind a network of its own.
func start(t *testing.T, srv *k8stest.Server, s settings) *operator {
	t.Helper()
	path, err := proxy.Listen(srv.Addr)
	if err != nil {
		t.Fatal(err)
	}
	s.URL, s.CA, s.JSON = "https://"+path.Addr(), srv.CA, !srv.Real()
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	o := &operator{t: t, log: filepath.Join(t.TempDir(), "log"), path: path}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), variable+"="+string(text))
	if err := o.Run(t, cmd, o.log); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		path.Heal()
		o.Cont()
		o.term()
		select {
		case <-o.Done():
		case <-time.After(30 * time.Second):
			o.Kill()
		}
		path.Close()
		if t.Failed() {
			t.Logf("what it said:\n%s", o.LogTail())
		}
	})
	return o
}

func (o *operator) term() {
	if !o.Exited() {
		_ = syscall.Kill(o.PID(), syscall.SIGTERM)
	}
}

// when returns when it said so last, 0 if it did not.
func (o *operator) when(what string) (at time.Duration) {
	text, err := os.ReadFile(o.log)
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(text) {
		f := strings.SplitN(strings.TrimSpace(string(line)), " ", 3)
		if len(f) == 3 && f[0] == "@" && strings.HasPrefix(f[2], what) {
			ns, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				o.t.Fatalf("%s: %v", line, err)
			}
			at = time.Duration(ns)
		}
	}
	return at
}

// says waits until it has said so, and returns when.
func (o *operator) says(what string) time.Duration {
	o.t.Helper()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if at := o.when(what); at > 0 {
			return at
		}
		if o.Exited() && o.when(what) == 0 {
			o.t.Fatalf("it has ended, and never said %q", what)
		}
	}
	o.t.Fatalf("it does not say %q", what)
	return 0
}

// ends waits until the process has ended, and returns when that was seen.
func (o *operator) ends() time.Duration {
	o.t.Helper()
	select {
	case <-o.Done():
		return boottime.Now()
	case <-time.After(2 * time.Minute):
		o.t.Fatal("the process does not end")
		return 0
	}
}
