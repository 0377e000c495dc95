package fence_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/fence"
	"github.com/primacy-go/primacy/memstore"
)

// A resource of one's own: a map under a mutex needs no more than After.
func ExampleStamp_After() {
	var last fence.Stamp // what the resource remembers
	write := func(s fence.Stamp, what string) {
		if err := s.After(last); err != nil {
			fmt.Println(err)
			return
		}
		last = s
		fmt.Println("written:", what)
	}
	old, successor := fence.Stamp{Name: "billing", Token: 7}, fence.Stamp{Name: "billing", Token: 9}
	write(old, "by the first leader")
	write(successor, "by the second")
	write(old, "by the first, late")
	// Output:
	// written: by the first leader
	// written: by the second
	// fence "billing": token 7 is stale: a newer leader has been here, under token 9
}

func TestTheRule(t *testing.T) {
	at := func(token primacy.Token, origin string) fence.Stamp {
		return fence.Stamp{Name: "x", Token: token, Origin: origin}
	}
	for _, c := range []struct {
		last, s fence.Stamp
		want    error
	}{
		{fence.Stamp{}, at(1, ""), nil},
		{fence.Stamp{}, at(math.MaxUint64, "etcd/1"), nil},
		{at(7, ""), at(7, ""), nil},
		{at(7, ""), at(8, ""), nil},
		{at(7, ""), at(6, ""), fence.ErrStale},
		{at(math.MaxUint64, ""), at(math.MaxUint64-1, ""), fence.ErrStale},
		{at(7, ""), at(7, "etcd/1"), nil}, // a fence learns the origin
		{at(7, ""), at(6, "etcd/1"), fence.ErrStale},
		{at(7, "etcd/1"), at(7, "etcd/1"), nil},
		{at(7, "etcd/1"), at(6, "etcd/1"), fence.ErrStale},
		{at(7, "etcd/1"), at(9, "etcd/2"), fence.ErrOrigin}, // larger means nothing here
		{at(7, "etcd/1"), at(6, "etcd/2"), fence.ErrOrigin},
		{at(7, "etcd/1"), at(9, ""), fence.ErrOrigin},
		{fence.Stamp{Name: "y", Token: 7}, at(9, ""), primacy.ErrInvalid}, // two elections for one resource
	} {
		err := c.s.After(c.last)
		if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%+v after %+v = %v, want %v", c.s, c.last, err, c.want)
		}
		if err == nil {
			continue
		}
		if errors.Is(err, primacy.ErrInvalid) {
			continue
		}
		for _, part := range []string{c.s.Token.String(), c.last.Token.String(), `"x"`} {
			if !strings.Contains(err.Error(), part) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%q: want one line with %s in it", err, part)
			}
		}
	}
}

func TestErrorsCarryBothTokensAsStringsInJSON(t *testing.T) {
	const large = primacy.Token(math.MaxUint64)
	err := fence.Stamp{Name: "x", Token: large - 1}.After(fence.Stamp{Name: "x", Token: large})
	var stale *fence.StaleError
	if !errors.As(fmt.Errorf("wrapped: %w", err), &stale) || stale.Token != large-1 || stale.Largest != large {
		t.Fatalf("errors.As gives %+v", stale)
	}
	text, _ := json.Marshal(stale)
	if want := `{"name":"x","token":"18446744073709551614","largest":"18446744073709551615"}`; string(text) != want {
		t.Errorf("JSON = %s, want %s", text, want)
	}
	var back fence.StaleError
	if err := json.Unmarshal(text, &back); err != nil || back != *stale {
		t.Errorf("JSON back = %+v, %v", back, err)
	}
	if gone := (&fence.StaleError{Name: "x", Token: 3}).Error(); !strings.Contains(gone, "claim is gone") {
		t.Errorf("without a newer token: %q", gone)
	}
}

func TestBadStamps(t *testing.T) {
	for what, s := range map[string]fence.Stamp{
		"no name":           {Token: 1},
		"control character": {Name: "a\nb", Token: 1},
		"long name":         {Name: strings.Repeat("x", 256), Token: 1},
		"not UTF-8":         {Name: "\xff", Token: 1},
		"no token":          {Name: "x"},
		"space in origin":   {Name: "x", Token: 1, Origin: "a b"},
		"long origin":       {Name: "x", Token: 1, Origin: strings.Repeat("x", 256)},
	} {
		if err := s.Valid(); !errors.Is(err, primacy.ErrInvalid) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: Valid() = %v, want one line with ErrInvalid", what, err)
		}
	}
	if err := (fence.Stamp{Name: "ünicode / 1", Token: 1, Origin: "etcd/cdf8181e3261e1a1"}).Valid(); err != nil {
		t.Error(err)
	}
}

// Holders of a shared lock write side by side: a fence would shut out all but the newest.
func TestSharedTermsAreRefused(t *testing.T) {
	s, err := primacy.NewSession(memstore.New(memstore.Options{}), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context())
	for what, c := range map[string]struct {
		lock func(context.Context) (*primacy.Term, error)
		ok   bool
	}{
		"a mutex":                {s.Mutex("m", nil).Lock, true},
		"a writer":               {s.RWMutex("w").Lock, true},
		"a reader":               {s.RWMutex("r").RLock, false},
		"a semaphore of several": {s.Semaphore("s", 3).Acquire, false},
		"a semaphore of one":     {s.Semaphore("one", 1).Acquire, true},
	} {
		term, err := c.lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := fence.Of(term).Valid(); (err == nil) != c.ok || !c.ok && !errors.Is(err, primacy.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
		term.Unlock()
	}
}

type store struct{}

func (store) Origin() string { return "etcd/1" }

func TestFrom(t *testing.T) {
	s := fence.Stamp{Name: "x", Token: 1}
	if got := s.From(store{}).Origin; got != "etcd/1" {
		t.Errorf("origin = %q", got)
	}
	if got := s.From(42).Origin; got != "" {
		t.Errorf("origin of a store that has none = %q", got)
	}
}

func TestFromEnv(t *testing.T) {
	for _, bad := range [][2]string{{"", ""}, {"x", ""}, {"", "7"}, {"x", "seven"}, {"x", "-7"}, {"x", "0"}, {"x", "18446744073709551616"}} {
		t.Setenv("PRIMACY_NAME", bad[0])
		t.Setenv("PRIMACY_TOKEN", bad[1])
		if s, err := fence.FromEnv(); !errors.Is(err, primacy.ErrInvalid) {
			t.Errorf("%q: FromEnv() = %+v, %v, want ErrInvalid", bad, s, err)
		}
	}
	t.Setenv("PRIMACY_NAME", "billing")
	t.Setenv("PRIMACY_TOKEN", "18446744073709551615")
	if s, err := fence.FromEnv(); err != nil || s != (fence.Stamp{Name: "billing", Token: math.MaxUint64}) {
		t.Errorf("FromEnv() = %+v, %v", s, err)
	}
}

var _ fence.Term = (*primacy.Term)(nil)
