package zkstore

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// Values of others may have filled the buffers of a connection to a server that is frozen.
func TestACallObeysItsContextWhereTheNetworkTakesNothing(t *testing.T) {
	l, _ := piped(t)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := l.request(ctx, deleteOp("/a"))
		done <- err
	}()
	select {
	case err := <-done:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("request = %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("it waits for the network")
	}
}

// A request that overtook user and password would be refused for good.
func TestNothingOvertakesThePasswordOnANewConnection(t *testing.T) {
	for _, user := range []string{"", "u"} {
		l, _ := piped(t)
		l.present, l.up = nil, make(chan struct{})
		l.store.config = Config{Username: user, Password: "p"}
		server, done := joining(t, l)
		answerSession(t, server, session{id: 7, timeout: time.Hour})
		if user != "" {
			head := make([]byte, 4)
			_, _ = io.ReadFull(server, head)
			if isClosed(l.up) { // though most of that request is still to be sent
				t.Error("it is up before the password was sent")
			}
			asks, err := readFrame(io.MultiReader(bytes.NewReader(head), server), 1024)
			r := reader{rest: asks}
			if number, code := r.int(), opcode(r.int()); err != nil || number != authNumber || code != opAuth {
				t.Errorf("request %d of kind %d is sent first, %v", number, code, err)
			}
		}
		if err := <-done; err != nil || !isClosed(l.up) {
			t.Errorf("user %q: join = %v", user, err)
		}
	}
}

// Nothing of a session lives in another one.
func TestASessionThatEndedIsNotBegunAnew(t *testing.T) {
	for _, id := range []int64{0, 8} {
		l, _ := piped(t)
		l.session = session{id: 7, timeout: time.Hour}
		server, done := joining(t, l)
		answerSession(t, server, session{id: id, timeout: time.Hour})
		if err := <-done; !errors.Is(err, driver.ErrGone) || !errors.Is(l.reason(), driver.ErrGone) {
			t.Errorf("session %d for 7: %v, %v", id, err, l.reason())
		}
	}
}
