package memstore_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/memstore"
)

// A program that uses the library is tested in a bubble, where nothing takes time: a session on
// this store keeps its lease there.
func TestASessionLeadsInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := primacy.NewSession(memstore.New(memstore.Options{}), &primacy.Options{ID: "a"})
		if err != nil {
			t.Fatal(err)
		}
		term, err := s.Election("n").Campaign(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 20 {
			if err := term.Check(); err != nil {
				t.Fatalf("after %d half TTLs: %v", i, err)
			}
			time.Sleep(primacy.DefaultTTL / 2)
		}
		if err := errors.Join(term.Resign(t.Context()), s.Close(t.Context())); err != nil {
			t.Error(err)
		}
	})
}
