package top

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
)

// A picture that is kept while nothing changes is the one that would be made anew, whatever
// changes.
func TestAPictureIsMadeAnewWithEachChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rnd := rand.New(rand.NewPCG(1, 2))
		began := time.Now()
		lines := map[string]primacy.State{}
		var token primacy.Token
		next := func(id string) primacy.Entry {
			token++
			return primacy.Entry{ID: id, Token: token, Lease: "lease of " + id, Value: []byte{byte(token)}}
		}
		terms := map[string][]Term{}
		left := map[string]driver.Remaining{}
		src := Source{
			List: func(context.Context) ([]primacy.State, error) {
				var all []primacy.State
				for name, st := range lines {
					st.Name, st.AsOf = name, time.Now()
					all = append(all, st)
				}
				return all, nil
			},
			Leases: func(context.Context, ...string) (map[string]driver.Remaining, error) { return left, nil },
			Recorded: func(context.Context) (names []string, err error) {
				for name := range terms {
					names = append(names, name)
				}
				return names, nil
			},
			History: func(_ context.Context, name string, _ int) ([]Term, error) { return terms[name], nil },
		}
		l := NewLive(src, 500*time.Millisecond, func() {})
		plain := func(all []Entry) []Entry {
			all = slices.Clone(all)
			for i := range all {
				all[i].State.AsOf = time.Time{}
			}
			return all
		}
		for n := range 1000 { // 8 minutes: nothing becomes too long ago to count
			time.Sleep(500 * time.Millisecond)
			name := fmt.Sprint("n", rnd.IntN(5))
			st := lines[name]
			switch rnd.IntN(20) {
			case 0:
				leader := next("a")
				st.Leader = &leader
				lines[name] = st
			case 1:
				st.Waiting = append(slices.Clone(st.Waiting), next("b"))
				lines[name] = st
			case 2:
				delete(lines, name)
			case 3:
				if st.Leader != nil {
					same := *st.Leader
					same.Value = []byte(fmt.Sprint(n))
					st.Leader, lines[name] = &same, st
				}
			case 4:
				terms[name] = []Term{{Token: token, From: began.Add(-time.Hour), ID: "a"}}
			case 5:
				left["lease of a"] = driver.Remaining{Left: time.Duration(n) * time.Second, TTL: time.Hour}
			}
			l.Refresh(t.Context())
			l.Look(t.Context(), []string{name}, time.Second)
			got := l.Picture()
			if asOf, _ := l.Read(); !got.AsOf.Equal(asOf) {
				t.Fatalf("step %d: it is as of %v, not %v", n, got.AsOf, asOf)
			}
			if want := l.w.view().entries(); !reflect.DeepEqual(plain(got.Entries), plain(want)) {
				t.Fatalf("step %d: the picture is\n%+v\nwant\n%+v", n, got.Entries, want)
			}
		}
		one := l.Picture()
		l.Refresh(t.Context())
		if again := l.Picture(); &again.Entries[0] != &one.Entries[0] {
			t.Error("what has not changed is made anew")
		}
		time.Sleep(judgedFor)
		l.Refresh(t.Context())
		if again := l.Picture(); &again.Entries[0] == &one.Entries[0] {
			t.Error("it is not judged anew though the time goes on")
		}
	})
}

// Each field of an entry is looked at: a change of one that is not would never be shown.
func TestEachFieldOfAnEntryIsCompared(t *testing.T) {
	zero := primacy.Entry{}
	for i := range reflect.TypeOf(zero).NumField() {
		other := primacy.Entry{}
		f := reflect.ValueOf(&other).Elem().Field(i)
		switch f.Kind() {
		case reflect.String:
			f.SetString("x")
		case reflect.Int:
			f.SetInt(1)
		case reflect.Uint64:
			f.SetUint(1)
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Slice:
			f.SetBytes([]byte("x"))
		default:
			t.Fatalf("%s: a %v", reflect.TypeOf(zero).Field(i).Name, f.Kind())
		}
		if sameEntry(zero, other) || sameState(primacy.State{Leader: &zero}, primacy.State{Leader: &other}) ||
			sameState(primacy.State{Waiting: []primacy.Entry{zero}}, primacy.State{Waiting: []primacy.Entry{other}}) {
			t.Errorf("a change of %s is not seen", reflect.TypeOf(zero).Field(i).Name)
		}
	}
}

// To find whose history is to be read next, not all names are looked through each time.
func TestThousandsOfNamesAreNotLookedThroughForEachHistory(t *testing.T) {
	w := newWatcher(Source{}, time.Second)
	now := time.Now()
	w.now = func() time.Time { return now }
	var states []primacy.State
	for i := range 2000 {
		states = append(states, primacy.State{Name: fmt.Sprint("n", i), Leader: &primacy.Entry{ID: "a", Token: 1}})
	}
	w.take(states, now, false)
	read := map[string]bool{}
	for range 100 {
		name, ok := w.unread()
		if !ok || read[name] {
			t.Fatalf("after %d names: %q, %v", len(read), name, ok)
		}
		read[name] = true
		w.tracks[name].read, w.tracks[name].readToken = true, 1
		now = now.Add(time.Millisecond)
	}
	if !w.dueAsOf.Equal(now.Add(-100 * time.Millisecond)) {
		t.Errorf("they were looked through again %v after the first time", w.dueAsOf.Sub(now)+100*time.Millisecond)
	}
	// What nobody stands for is found soon, and comes first.
	w.tracks["old"] = &track{state: primacy.State{Name: "old"}, unseen: true}
	now = now.Add(historyRests)
	if name, _ := w.unread(); name != "old" {
		t.Errorf("%s comes before what nobody stands for", name)
	}
}
