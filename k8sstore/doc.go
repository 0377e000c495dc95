// Package k8sstore keeps leases and claims in the Leases of a Kubernetes API server
// (coordination.k8s.io/v1), in one namespace. It speaks HTTP by itself: whoever links it links no
// client-go. What it needs beside an address is the role in deploy/kubernetes/base/role.yaml.
//
//	store, err := k8sstore.Open(ctx, config)  // config, err := k8sstore.InCluster(), in a pod
//
// With client-go at hand:
//
//	client, err := rest.HTTPClientFor(config)
//	store, err := k8sstore.New(k8sstore.Config{URL: config.Host, Client: client, Namespace: "x"})
//
// # Objects
//
// It is a [registerstore.Register]: all that is said there holds here. A value is an annotation of
// a Lease. There is one Lease for each name, with its line, PREFIX.line-NAME; one for each
// process's own lease, PREFIX.lease-ID, which its owner rewrites at each renewal, however many
// names it leads; one for each journal. Only letters and digits stand in them as they are, the rest
// is escaped.
//
// The fields that kubectl shows are for people, and nothing decides by them: holderIdentity is who
// leads, acquireTime since when by the clock of whoever wrote it, leaseTransitions how often the
// leader changed. The Lease of a process has leaseDurationSeconds and renewTime too. That of a name
// has none: nobody renews it, and readers would take it for one that has run out.
//
// # Versions
//
// A version is the object's uid and resourceVersion, and both stand in each write. The
// resourceVersion alone would not do: the API server makes a Lease anew by an update that names no
// uid, so a write that was held up could bring back what was deleted. Reads ask for no
// resourceVersion: only then the server asks etcd, and not its own cache.
//
// # What it cannot know
//
// Tokens of a name begin anew if somebody deletes its Lease, or the namespace. A backup of etcd
// that is restored brings back earlier tokens, and leases that have ended. Whoever may write Leases
// of the namespace may end any leadership in it.
package k8sstore
