package etcdapi

import (
	"testing"
	"time"
)

// TestACallThatWasGivenUpDoesNotHurtTheNext has a lease ask again for what it has just given up
// waiting for. On etcd itself the key of the first call can be deleted under the second ("mutex:
// session is expired").
func TestACallThatWasGivenUpDoesNotHurtTheNext(t *testing.T) {
	t.Parallel()
	c, _ := ours(t)
	a, b := c.once(60), c.once(60)
	for range 20 {
		key, err := c.lock(a, "n", time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.lock(b, "n", 5*time.Millisecond); err == nil {
			t.Fatal("two hold it")
		}
		next := make(chan error, 1)
		go func() {
			key, err := c.lock(b, "n", 10*time.Second)
			if err == nil {
				err = c.unlock(key)
			}
			next <- err
		}()
		time.Sleep(time.Millisecond)
		if err := c.unlock(key); err != nil {
			t.Fatal(err)
		}
		if err := <-next; err != nil {
			t.Fatal(err)
		}
	}
}
