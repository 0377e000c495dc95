package leaderelection

import (
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/primacy-go/primacy/internal/k8stest"
)

// A standby of client-go's sees one renewal where there were several within a second, and counts
// from the first of them.
func TestAStandbyOfClientGoDoesNotComeEarly(t *testing.T) {
	for _, at := range []times{
		{2 * time.Second, 1900 * time.Millisecond, 200 * time.Millisecond},
		{3 * time.Second, 2400 * time.Millisecond, 300 * time.Millisecond},
		{8 * time.Second, 7500 * time.Millisecond, 300 * time.Millisecond},
	} {
		var worst time.Duration
		for range 100 {
			inBubble(t, func(w *world) {
				a := w.stand("ours", "a", at, nil)
				w.leads(a)
				b := w.stand("client-go", "b", at, nil)
				time.Sleep(10*time.Second + time.Duration(rand.Int64N(int64(2*time.Second))))
				a.set(func() { a.cut = true })
				w.leads(b)
				time.Sleep(5 * time.Second)
				for _, c := range w.all {
					c.set(func() { c.cut = false })
					c.end()
				}
				worst = max(worst, w.overlap())
			})
		}
		if worst > 0 {
			t.Errorf("with a lease of %v two lead for up to %v", at.lease, worst)
		}
	}
}

// losesAnswers has the answer to the next write lost.
type losesAnswers struct {
	http.RoundTripper
	next atomic.Bool
}

func (l *losesAnswers) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := l.RoundTripper.RoundTrip(r)
	if err == nil && r.Method != "GET" && l.next.CompareAndSwap(true, false) {
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		return nil, errors.New("the answer is lost")
	}
	return resp, err
}

// What the watch tells of a write whose answer was lost is no reason to wait until it runs out.
func TestAWatchTellsThatALostWriteWon(t *testing.T) {
	t.Parallel()
	srv := k8stest.StartFake(t)
	lock := lockOn(t, srv, "job", "me")
	loses := &losesAnswers{}
	loses.next.Store(true)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: srv.URL, BearerToken: k8stest.UserToken,
		TLSClientConfig: rest.TLSClientConfig{CAData: srv.CA},
		ContentConfig:   rest.ContentConfig{ContentType: "application/json", AcceptContentTypes: "application/json"},
		WrapTransport: func(rt http.RoundTripper) http.RoundTripper {
			loses.RoundTripper = rt
			return loses
		}})
	if err != nil {
		t.Fatal(err)
	}
	lock.Client = client.CoordinationV1()
	leads := make(chan string, 1)
	stands(t, lock, false, leads)
	select {
	case <-leads:
	case <-time.After(30 * time.Second): // RetryPeriod with its jitter is 22 s, LeaseDuration 60 s
		t.Error("after 30 s nobody leads, though the Lease is ours")
	}
}
