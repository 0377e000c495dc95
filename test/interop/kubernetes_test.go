//go:build linux

package interop

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/k8stest"
	"github.com/primacy-go/primacy/internal/servertest"
	"github.com/primacy-go/primacy/k8sstore"
)

// The client that a user of client-go has already carries the store, and client-go reads what the
// store writes.
func TestTheClientOfClientGoCarriesTheStore(t *testing.T) {
	servertest.Long(t, "race-program")
	srv := k8stest.Start(t)
	config := &rest.Config{Host: srv.URL, BearerToken: k8stest.UserToken,
		TLSClientConfig: rest.TLSClientConfig{CAData: srv.CA},
		Timeout:         time.Second}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	s, err := k8sstore.New(k8sstore.Config{URL: config.Host, Client: client, Namespace: k8stest.Namespace})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l, err := s.Grant(t.Context(), "me", 15*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Claim(t.Context(), driver.Claim{Name: "n", ID: "c"}); err != nil {
		t.Fatal(err)
	}
	ln, err := s.Line(t.Context(), "n")
	if err != nil {
		t.Fatal(err)
	}
	// A watch lasts longer than the time limit of the client.
	begun, told := time.Now(), make(chan error, 1)
	go func() {
		_, err := s.Next(t.Context(), "n", ln.Revision)
		told <- err
	}()
	time.AfterFunc(2*time.Second, func() { l.Close(t.Context()) })
	if err := <-told; err != nil || time.Since(begun) < 2*time.Second {
		t.Errorf("told of the release after %v: %v", time.Since(begun), err)
	}
	if !srv.Real() {
		return // client-go asks for protobuf, which the fake does not speak
	}
	leases, err := kubernetes.NewForConfigOrDie(config).CoordinationV1().Leases(k8stest.Namespace).
		List(t.Context(), metav1.ListOptions{LabelSelector: "primacy-go.github.io/kind=line"})
	if err != nil || len(leases.Items) != 1 || leases.Items[0].Spec.LeaseTransitions == nil {
		t.Errorf("client-go reads %v, %v", leases, err)
	}
}
