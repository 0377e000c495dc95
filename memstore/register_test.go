package memstore_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/primacy-go/primacy/memstore"
)

func put(t *testing.T, r *memstore.Register, key, value, version string, want bool) string {
	t.Helper()
	next, ok, err := r.Put(t.Context(), key, []byte(value), version)
	if err != nil || ok != want || ok && (next == "" || next == version) {
		t.Fatalf("Put of %s under version %q = %q, %v, %v, want %v and a new version", key, version, next, ok, err, want)
	}
	return next
}

func TestARegisterWritesUnderTheVersionItHasOnly(t *testing.T) {
	r := memstore.NewRegister()
	if v, version, err := r.Get(t.Context(), "k"); v != nil || version != "" || err != nil {
		t.Errorf("Get of what is not there = %q, %q, %v", v, version, err)
	}
	put(t, r, "k", "x", "1", false)
	first := put(t, r, "k", "one", "", true)
	put(t, r, "k", "x", "", false)
	second := put(t, r, "k", "two", first, true)
	put(t, r, "k", "x", first, false)
	if err := r.Delete(t.Context(), "k", first); err != nil {
		t.Fatal(err)
	}
	if v, version, err := r.Get(t.Context(), "k"); string(v) != "two" || version != second || err != nil {
		t.Errorf("Get = %q, %q, %v, want two under %q", v, version, err, second)
	}
	if err := r.Delete(t.Context(), "k", second); err != nil {
		t.Fatal(err)
	}
	put(t, r, "k", "x", second, false)
	if third := put(t, r, "k", "three", "", true); third == first || third == second {
		t.Errorf("the version %q came back after a Delete", third)
	}
	put(t, r, "k/2", "", "", true)
	put(t, r, "j", "", "", true)
	if keys, err := r.List(t.Context(), "k"); err != nil || !slices.Equal(keys, []string{"k", "k/2"}) {
		t.Errorf("List = %q, %v", keys, err)
	}
}

func TestOfManyPutsUnderOneVersionOneIsCarriedOut(t *testing.T) {
	r := memstore.NewRegister()
	version := put(t, r, "k", "0", "", true)
	var won sync.Map
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			if _, ok, _ := r.Put(t.Context(), "k", []byte{byte(i)}, version); ok {
				won.Store(i, true)
			}
		})
	}
	all.Wait()
	n := 0
	won.Range(func(any, any) bool { n++; return true })
	if n != 1 {
		t.Errorf("%d of 8 were carried out, want 1", n)
	}
}

func TestAWatchTellsStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := memstore.NewRegister()
		told := make(chan string, 1)
		watch := func(version string) {
			go func() {
				v, next, err := r.Watch(t.Context(), "k", version)
				if err != nil {
					next = err.Error()
				}
				told <- string(v) + " " + next
			}()
			synctest.Wait()
		}
		watch("")
		put(t, r, "j", "other", "", true)
		synctest.Wait()
		select {
		case got := <-told:
			t.Fatalf("Watch = %s though only another key changed", got)
		default:
		}
		first := put(t, r, "k", "one", "", true)
		if got := <-told; got != "one "+first {
			t.Errorf("Watch = %s, want one under %s", got, first)
		}
		watch(first)
		if err := r.Delete(t.Context(), "k", first); err != nil {
			t.Fatal(err)
		}
		if got := <-told; got != " " {
			t.Errorf("Watch = %q, want it deleted", got)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, _, err := r.Watch(ctx, "k", ""); !errors.Is(err, context.Canceled) {
			t.Errorf("Watch whose context ended = %v", err)
		}
	})
}
