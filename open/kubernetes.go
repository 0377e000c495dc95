package open

import (
	"errors"
	"os"

	"github.com/primacy-go/primacy/k8sstore"
)

const kubernetesScheme = "k8s"

// Kubeconfig reads how a kubeconfig reaches its cluster: that file, or with "" those of $KUBECONFIG
// or ~/.kube/config, and that context, or with "" the current one. The program sets it.
// It is YAML, which this module does not parse. Whoever has client-go hands its client to
// [k8sstore.New]. Set it before the first [Open].
var Kubeconfig func(file, context string) (k8sstore.Config, error)

// readNamespace reads what stands where other URLs have hosts.
func (a *address) readNamespace(authority string) error {
	if a.user != "" || a.password != "" || a.path != "" {
		return bad("it must name a namespace, and nothing else: use %s", a.example())
	}
	a.namespace = authority
	return nil
}

func k8sConfig(a address) (c k8sstore.Config, err error) {
	file, _ := a.take("kubeconfig")
	context, _ := a.take("context")
	prefix, _ := a.take("prefix")
	if err := a.rest("prefix, kubeconfig or context"); err != nil {
		return c, err
	}
	if file == "" && context == "" && os.Getenv("KUBECONFIG") == "" {
		c, err = k8sstore.InCluster()
	} else {
		err = k8sstore.ErrNotInCluster
	}
	if errors.Is(err, k8sstore.ErrNotInCluster) && Kubeconfig != nil {
		if c, err = Kubeconfig(file, context); err != nil && file == "" && context == "" &&
			os.Getenv("KUBECONFIG") == "" {
			return c, bad("this is no pod of Kubernetes, and %v", err)
		}
	} else if errors.Is(err, k8sstore.ErrNotInCluster) {
		return c, bad("%v, and kubeconfig is for the program: with client-go at hand use k8sstore.New", err)
	}
	if err != nil {
		return c, bad("%v", err)
	}
	c.Prefix = prefix
	if a.namespace != "" {
		c.Namespace = a.namespace
	}
	if c.Namespace == "" {
		c.Namespace = "default" // as kubectl has it
	}
	return c, nil
}
