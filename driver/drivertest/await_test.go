package drivertest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/memstore"
)

func TestAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(memstore.Options{})
		lease := func() driver.Lease {
			l, err := s.Grant(t.Context(), "a", time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		n := 0
		claim := func(l driver.Lease, name string) driver.Place {
			n++
			p, err := l.Claim(t.Context(), driver.Claim{Name: name, ID: fmt.Sprint(n)})
			if err != nil {
				t.Fatal(err)
			}
			return p[0]
		}
		first, second := lease(), lease()
		p := claim(first, "a")
		if got, err := drivertest.Await(t.Context(), first, p); err != nil || got != p {
			t.Errorf("Await of a place that is held = %+v, %v", got, err)
		}

		claim(first, "b")
		a, c, d := claim(second, "a"), claim(second, "b"), claim(second, "d")
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := drivertest.Await(short, second, a); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Await while another holds = %v, want its context's end", err)
		}
		type answer struct {
			p   driver.Place
			err error
		}
		await := func(p driver.Place) <-chan answer {
			ch := make(chan answer, 1)
			go func() {
				got, err := drivertest.Await(t.Context(), second, p)
				ch <- answer{got, err}
			}()
			return ch
		}
		awaitA, awaitB := await(a), await(c)
		synctest.Wait()
		if err := first.Release(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if got := <-awaitA; got.err != nil || !got.p.Held || got.p.Token != a.Token {
			t.Errorf("Await = %+v, %v, want %+v held", got.p, got.err, a)
		}
		s.Remove("d", d.Token) // told while another place is awaited, and kept
		synctest.Wait()
		s.Remove("b", c.Token)
		if got := <-awaitB; !errors.Is(got.err, driver.ErrGone) {
			t.Errorf("Await of a place that was removed = %v, want ErrGone", got.err)
		}
		if got := <-await(d); !errors.Is(got.err, driver.ErrGone) {
			t.Errorf("Await of a place that was removed before = %v, want ErrGone", got.err)
		}
		news, err := drivertest.News(t.Context(), second)
		if err != nil || len(news) != 2 || !news[0].Gone || news[0].Place.ID != d.ID || news[1].Place.ID != c.ID {
			t.Errorf("News = %+v, %v, want the places that were removed", news, err)
		}

		again := claim(second, "b")
		awaitB = await(again)
		synctest.Wait()
		if err := second.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := <-awaitB; !errors.Is(got.err, driver.ErrGone) {
			t.Errorf("Await under a lease that was closed = %v, want ErrGone", got.err)
		}
	})
}
