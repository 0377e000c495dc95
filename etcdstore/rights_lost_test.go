package etcdstore_test

import (
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// TestAHolderWithoutRightsIsDeposed: a user loses the rights to a name that its session holds since
// it was told so, and then an operator removes the claim. News tells that it is gone: without that
// the session goes on leading beside the next one.
func TestAHolderWithoutRightsIsDeposed(t *testing.T) {
	t.Parallel()
	admin, runner, clerk := clerkAmong(t, "@session/", "a/")
	holder, l := grant(t, runner, "holder", time.Minute), grant(t, clerk, "clerk", time.Minute)
	held, p := claim(t, holder, "a"), claim(t, l, "a")
	told := make(chan driver.News, 10)
	go func() {
		for ctx := within(t, time.Minute); ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
			news, err := l.News(ctx)
			if err != nil {
				t.Log(err)
			}
			for _, n := range news {
				told <- n
			}
		}
	}()
	l.Follow(p)
	time.Sleep(time.Second) // its line is watched
	release(t, holder, held)
	if n := <-told; !n.Held {
		t.Fatalf("news = %+v, want it held", n)
	}
	forbid(t, admin, "a/")
	time.Sleep(10 * time.Second) // News checks meanwhile
	if _, err := admin.Delete(soon(t), "primacy/a/"+l.ID()); err != nil {
		t.Fatal(err)
	}
	for end := time.After(15 * time.Second); ; {
		select {
		case n := <-told:
			t.Logf("held %v gone %v refused %v", n.Held, n.Gone, n.Refused)
			if n.Gone {
				return
			}
		case <-end:
			t.Fatal("the claim was removed, the lease lives, and its owner is not told")
		}
	}
}
