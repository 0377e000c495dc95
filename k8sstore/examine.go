package k8sstore

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// verbs are what the role needs, and what is missed without each.
var verbs = []string{"get", "list", "watch", "create", "update", "delete"}

// probe asks whether a Lease could be made, without making one: so the server, who asks, the role
// and the namespace are as they must be.
func (a *api) probe(ctx context.Context) error {
	c := a.leases("create", http.MethodPost, "")
	c.query.Set("dryRun", "All")
	c.body = a.newObject("probe.x", nil, version{})
	_, err := a.do(ctx, c, nil)
	return err
}

// Examine implements [driver.Store]: the server, whether it knows who asks, the namespace, the
// role, and what every register has.
func (s *Store) Examine(ctx context.Context, name string) []driver.Finding {
	a := s.api
	first := driver.Finding{Topic: "API server " + a.base.Host, Level: driver.Fine}
	begun := time.Now()
	var v struct{ GitVersion string }
	if _, err := a.do(ctx, call{verb: "ask", method: http.MethodGet, path: "/version", query: url.Values{}},
		&v); err != nil {
		first.Level, first.Found, first.Advice = driver.Failed, err.Error(),
			"look at the address, the network and the certificate authority"
		return []driver.Finding{first}
	}
	first.Found = fmt.Sprintf("Kubernetes %s, answers in %v", strings.TrimPrefix(v.GitVersion, "v"),
		time.Since(begun).Round(time.Microsecond))
	all := []driver.Finding{first, a.role(ctx)}
	space := driver.Finding{Topic: "namespace " + a.namespace, Level: driver.Fine, Found: "takes Leases"}
	if err := a.probe(ctx); err != nil {
		space.Level, space.Found, space.Advice = driver.Failed, err.Error(),
			"make the namespace, and let the role be in it"
	}
	return append(append(all, space), s.Store.Examine(ctx, name)...)
}

// role asks which verbs of the role are missing.
func (a *api) role(ctx context.Context) driver.Finding {
	f := driver.Finding{Topic: "role", Level: driver.Fine, Found: "has all it needs: " + strings.Join(verbs, ", ")}
	var missing []string
	for _, verb := range verbs {
		c := call{verb: "ask", method: http.MethodPost, path: "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
			query: url.Values{}, body: review(a.namespace, verb)}
		var answer struct{ Status struct{ Allowed bool } }
		if _, err := a.do(ctx, c, &answer); err != nil {
			f.Level, f.Found, f.Advice = driver.Warning, "could not be asked for: "+err.Error(), ""
			return f
		}
		if !answer.Status.Allowed {
			missing = append(missing, verb)
		}
	}
	if len(missing) == 0 {
		return f
	}
	f.Level, f.Found = driver.Failed, "may not "+strings.Join(missing, ", ")+" leases in "+a.namespace
	f.Advice = "apply deploy/kubernetes/base/role.yaml, and bind it to who asks"
	if !slices.ContainsFunc(missing, func(v string) bool { return v != "watch" && v != "delete" }) {
		f.Level = driver.Warning // changes are polled for, and what has ended stays
	}
	return f
}

func review(namespace, verb string) map[string]any {
	return map[string]any{"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
		"spec": map[string]any{
			"resourceAttributes": map[string]string{"namespace": namespace, "group": "coordination.k8s.io",
				"resource": "leases", "verb": verb}}}
}
