package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/k8stest"
)

// kustomized returns what a kustomization of a user's own makes of one of deploy/kubernetes.
func kustomized(t *testing.T, name, namespace string) []byte {
	t.Helper()
	dir := t.TempDir()
	base, err := filepath.Abs(filepath.Join(deploy, "kubernetes", name))
	if err != nil {
		t.Fatal(err)
	}
	if base, err = filepath.Rel(dir, base); err != nil {
		t.Fatal(err)
	}
	text := "namespace: " + namespace + "\nresources: [" + base + "]\n" +
		"images: [{name: primacy, newName: registry.example.com/primacy, newTag: v1}]\n"
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	made, err := exec.Command("kubectl", "kustomize", dir).Output()
	if err == nil {
		return made
	}
	// Before 1.21 kubectl had a version of 2019.
	cmd := exec.Command("go", "run", "sigs.k8s.io/kustomize/kustomize/v5@v5.8.3", "build", dir)
	cmd.Env, cmd.Stderr = append(os.Environ(), "GOWORK=off"), t.Output()
	if made, err = cmd.Output(); err != nil {
		t.Fatal(err)
	}
	return made
}

// The API server takes what a user's kustomization makes of the manifests, and a pod of theirs,
// where only pods of the strictest standard may run. The role is enough for the service account.
func TestTheAPIServerTakesTheManifests(t *testing.T) {
	onlyInVerify(t)
	t.Parallel()
	srv := k8stest.Start(t)
	if !srv.Real() {
		t.Skip("NOT TESTED: there is no kube-apiserver")
	}
	config := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(config, fmt.Appendf(nil, `
clusters: [{name: it, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: it, user: {token: %s}}]
contexts: [{name: it, context: {cluster: it, user: it}}]
current-context: it
`, srv.URL, base64.StdEncoding.EncodeToString(srv.CA), k8stest.AdminToken), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, deployment := range map[string]string{"base": "", "run": "invoicer", "serve": "billing"} {
		ns := "team-" + name
		srv.Do("POST", "/api/v1/namespaces", `{"metadata":{"name":"`+ns+`","labels":{
			"pod-security.kubernetes.io/enforce":"restricted","pod-security.kubernetes.io/warn":"restricted"}}}`)
		cmd := exec.Command("kubectl", "--kubeconfig", config, "apply", "-f", "-")
		cmd.Stdin = bytes.NewReader(kustomized(t, name, ns))
		cmd.Env = append(os.Environ(), "HOME="+t.TempDir()) // its cache
		said, err := cmd.CombinedOutput()
		if err != nil || bytes.Contains(said, []byte("Warning")) {
			t.Errorf("%s: %v\n%s", name, err, said)
			continue
		}
		for verb, resource := range map[string]string{"create": "leases", "delete": "leases", "list": "secrets"} {
			awaitAllowed(t, srv, ns, verb, resource, resource == "leases")
		}
		if deployment == "" {
			continue
		}
		var d struct {
			Spec struct{ Template map[string]any }
		}
		if err := json.Unmarshal(srv.Do("GET", "/apis/apps/v1/namespaces/"+ns+"/deployments/"+deployment, ""),
			&d); err != nil {
			t.Fatal(err)
		}
		pod := d.Spec.Template
		pod["apiVersion"], pod["kind"] = "v1", "Pod"
		pod["metadata"] = map[string]any{"name": "one"}
		text, err := json.Marshal(pod)
		if err != nil {
			t.Fatal(err)
		}
		made := srv.Do("POST", "/api/v1/namespaces/"+ns+"/pods?dryRun=All", string(text))
		for _, want := range []string{`"serviceAccountName":"primacy"`, "/secrets/kubernetes.io/serviceaccount"} {
			if !strings.Contains(string(made), want) {
				t.Errorf("%s: the pod has no %s", name, want)
			}
		}
	}
}

// awaitAllowed waits until the server knows whether the service account may do something.
func awaitAllowed(t *testing.T, srv *k8stest.Server, ns, verb, resource string, want bool) {
	t.Helper()
	group := map[string]string{"leases": "coordination.k8s.io"}[resource]
	review := fmt.Sprintf(`{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","spec":{
		"user":"system:serviceaccount:%s:primacy",
		"resourceAttributes":{"namespace":%q,"group":%q,"resource":%q,"verb":%q}}}`, ns, ns, group, resource, verb)
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		var answer struct{ Status struct{ Allowed bool } }
		if err := json.Unmarshal(srv.Do("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review),
			&answer); err != nil {
			t.Fatal(err)
		}
		if answer.Status.Allowed == want {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s %s in %s: allowed is not %v", verb, resource, ns, want)
		}
	}
}
