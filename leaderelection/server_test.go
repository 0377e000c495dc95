package leaderelection

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	orig "k8s.io/client-go/tools/leaderelection"
	rl "k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/primacy-go/primacy/internal/k8stest"
	"github.com/primacy-go/primacy/internal/servertest"
)

// lockOn returns the lock of a candidate on a server.
func lockOn(t *testing.T, srv *k8stest.Server, name, id string) *rl.LeaseLock {
	config := &rest.Config{Host: srv.URL, BearerToken: k8stest.UserToken,
		TLSClientConfig: rest.TLSClientConfig{CAData: srv.CA},
		// The fake does not speak protobuf.
		ContentConfig: rest.ContentConfig{ContentType: "application/json", AcceptContentTypes: "application/json"}}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return &rl.LeaseLock{LeaseMeta: metav1.ObjectMeta{Namespace: k8stest.Namespace, Name: name},
		Client: client.CoordinationV1(), LockConfig: rl.ResourceLockConfig{Identity: id}}
}

// stands runs a candidate until the returned function is called, which waits for its end. Leads
// gets its identity when it leads.
func stands(t *testing.T, lock *rl.LeaseLock, theirs bool, leads chan<- string) (end func()) {
	callbacks := LeaderCallbacks{
		OnStartedLeading: func(ctx context.Context) { leads <- lock.Identity(); <-ctx.Done() },
		OnStoppedLeading: func() {}}
	var e elector
	var err error
	// A long RetryPeriod: who polls is seen to.
	if at := (times{60 * time.Second, 50 * time.Second, 10 * time.Second}); theirs {
		e, err = orig.NewLeaderElector(orig.LeaderElectionConfig{Lock: lock, LeaseDuration: at.lease,
			RenewDeadline: at.deadline, RetryPeriod: at.retry, ReleaseOnCancel: true, Callbacks: callbacks})
	} else {
		e, err = NewLeaderElector(LeaderElectionConfig{Lock: lock, LeaseDuration: at.lease,
			RenewDeadline: at.deadline, RetryPeriod: at.retry, ReleaseOnCancel: true, Callbacks: callbacks})
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); e.Run(ctx) }()
	end = func() { cancel(); <-done }
	t.Cleanup(end)
	return end
}

// Who stands by hears of a release by its watch, be it client-go's or ours, and of a deletion.
func TestStandbysWatch(t *testing.T) {
	servertest.Long(t, "race-library")
	t.Parallel()
	srv := k8stest.Start(t)
	leads := make(chan string, 1)
	await := func(want string, limit time.Duration) {
		t.Helper()
		select {
		case got := <-leads:
			if got != want {
				t.Fatalf("%s leads, want %s", got, want)
			}
		case <-time.After(limit):
			t.Fatalf("after %v %s does not lead", limit, want)
		}
	}
	end := stands(t, lockOn(t, srv, "job", "theirs"), true, leads)
	await("theirs", time.Minute)
	var watched []string
	for _, id := range []string{"first", "second"} {
		next := stands(t, lockOn(t, srv, "job", id), false, leads)
		time.Sleep(time.Second) // it stands by
		began := time.Now()
		end()
		await(id, 9*time.Second) // a poll comes 10 s after the one before, or later
		watched = append(watched, time.Since(began).Round(time.Millisecond).String())
		end = next
	}
	t.Logf("the next led after %v", watched)
	spec := string(srv.Do("GET", k8stest.Leases+"/job", ""))
	for _, want := range []string{`"holderIdentity":"second"`, `"leaseDurationSeconds":60`, `"leaseTransitions":2`} {
		if !strings.Contains(strings.Join(strings.Fields(spec), ""), want) {
			t.Errorf("%s is not in the Lease:\n%s", want, spec)
		}
	}
}

// A role without watch, as client-go's users have it, is enough.
func TestWithoutWatchItIsPolled(t *testing.T) {
	t.Parallel()
	srv := k8stest.StartFake(t)
	srv.Allow(slices.DeleteFunc(slices.Clone(k8stest.Verbs), func(v string) bool { return v == "watch" })...)
	leads := make(chan string, 1)
	end := stands(t, lockOn(t, srv, "job", "first"), false, leads)
	<-leads
	stands(t, lockOn(t, srv, "job", "second"), false, leads)
	time.Sleep(time.Second)
	end()
	select {
	case <-leads:
	case <-time.After(time.Minute):
		t.Error("a minute after the release nobody leads")
	}
}
