// Command operator is an operator built with controller-runtime whose manager leads under a term of
// package leaderelection: what differs from one with LeaderElectionID is marked. It deletes the
// Leases of a namespace when the time that their annotation example.com/ttl gives them is over.
package main

import (
	"context"
	"os"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/primacy-go/primacy/leaderelection"
)

func main() {
	ctrl.SetLogger(zap.New())
	namespace := os.Getenv("POD_NAMESPACE")
	if namespace == "" { // the cache would hold the Leases of all namespaces
		ctrl.Log.Info("set POD_NAMESPACE to the pod's own namespace")
		os.Exit(1)
	}
	mgr, lead, err := newManager(ctrl.GetConfigOrDie(), namespace)
	if err == nil {
		err = lead.Run(ctrl.SetupSignalHandler(), mgr.Start) // was mgr.Start(ctrl.SetupSignalHandler())
	}
	if err != nil {
		ctrl.Log.Error(err, "the operator ends")
		os.Exit(1)
	}
}

// newManager makes the manager, and what it leads by.
func newManager(c *rest.Config, namespace string, also ...func(*ctrl.Options)) (
	ctrl.Manager, *leaderelection.Managed, error,
) {
	lead, err := leaderelection.NewManaged(c, namespace, "operator") // was LeaderElectionID
	if err != nil {
		return nil, nil, err
	}
	o := ctrl.Options{
		LeaderElection:                      true,
		LeaderElectionResourceLockInterface: lead.Lock(),  // new
		BaseContext:                         lead.Context, // new
		// Standbys fill their caches too. It has nothing to do with who elects.
		Controller: config.Controller{EnableWarmup: ptr.To(true)},
		Cache:      cache.Options{DefaultNamespaces: map[string]cache.Config{namespace: {}}},
	}
	for _, change := range also {
		change(&o)
	}
	mgr, err := ctrl.NewManager(c, o)
	if err != nil {
		return nil, nil, err
	}
	err = ctrl.NewControllerManagedBy(mgr).For(&coordinationv1.Lease{}).Complete(&janitor{mgr.GetClient()})
	return mgr, lead, err
}

type janitor struct{ client.Client }

// Reconcile deletes a Lease whose time is over, and comes back then for another one.
func (j *janitor) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var lease coordinationv1.Lease
	if err := j.Get(ctx, req.NamespacedName, &lease); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	ttl, err := time.ParseDuration(lease.Annotations["example.com/ttl"])
	if err != nil {
		return ctrl.Result{}, nil // it has none
	}
	if left := time.Until(lease.CreationTimestamp.Add(ttl)); left > 0 {
		return ctrl.Result{RequeueAfter: left}, nil
	}
	return ctrl.Result{}, client.IgnoreNotFound(j.Delete(ctx, &lease, client.Preconditions{
		UID: &lease.UID, ResourceVersion: &lease.ResourceVersion}))
}
