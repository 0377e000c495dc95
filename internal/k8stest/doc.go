// Package k8stest runs a Kubernetes API server for tests: the real one, built from Kubernetes' own
// module on this project's etcd, with TLS and RBAC; or a small fake of its Leases in this process,
// where the real one has not been built on this machine yet.
//
// Which one a test gets: the real one where KUBE_APISERVER=real says so (it is built then, once,
// which takes minutes: more than a package's tests may take, so make kube-apiserver comes before
// them), and where it is there already. KUBE_APISERVER=fake asks for the other one. Each test says
// which one it ran on.
package k8stest
