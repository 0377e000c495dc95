package shards

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
)

func TestShardNames(t *testing.T) {
	if got := shardName("a/b", 7); got != "a/b/0007" {
		t.Errorf("shard 7 of a/b is %q", got)
	}
	for name, want := range map[string]int{"a/0000": 0, "a/0012": 12, "a/9999": 9999} {
		if got, ok := shardNumber("a", name); !ok || got != want {
			t.Errorf("shardNumber of %q = %d, %v", name, got, ok)
		}
	}
	for _, name := range []string{"a", "a/", "a/12", "a/00012", "a/+001", "a/b/0001", "ab/0001", "a/000x", "b/0001"} {
		if got, ok := shardNumber("a", name); ok {
			t.Errorf("%q is taken for shard %d of a", name, got)
		}
	}
}

func randomAnnouncement(r *rand.Rand, shards, members int) announcement {
	a := announcement{epoch: primacy.Token(r.Uint64N(1 << 40)), seq: r.Uint64N(1000)}
	var tokens []primacy.Token
	for range members {
		tokens = append(tokens, primacy.Token(1+r.Uint64N(1<<40)))
	}
	for i := range shards {
		switch to := tokens[r.IntN(members)]; r.IntN(4) {
		case 0, 1:
			a.takes = append(a.takes, take{i, to})
		case 2:
			why := reasons[r.IntN(len(reasons))]
			a.moves = append(a.moves, move{i, primacy.Token(r.Uint64()), to, why, r.IntN(2) == 0})
		}
	}
	return a
}

// all is the bytes of an encoded announcement.
func all(b []byte, _ int) []byte { return b }

func TestAnnouncementsAreReadAsTheyWereWritten(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		n := 1 + r.IntN(300)
		a := randomAnnouncement(r, n, 1+r.IntN(10))
		got, err := decodeAnnouncement(all(a.encode(1<<20)), n)
		if err != nil || !reflect.DeepEqual(got, a) {
			t.Fatalf("decoded %+v, %v, want %+v", got, err, a)
		}
	}
	got, err := decodeAnnouncement(all(announcement{epoch: 5, seq: 6}.encode(100)), 1)
	if err != nil || got.epoch != 5 || got.seq != 6 {
		t.Errorf("an empty plan is read as %+v, %v", got, err)
	}
}

func TestAnAnnouncementFitsIntoAValue(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	a := announcement{epoch: 1 << 40, seq: 1}
	var tokens []primacy.Token
	for range 50 {
		tokens = append(tokens, primacy.Token(1<<39+r.Uint64N(1<<20)))
	}
	for i := range 1024 {
		a.takes = append(a.takes, take{i, tokens[r.IntN(50)]})
	}
	if n := len(all(a.encode(1 << 20))); n > 1500 {
		t.Errorf("1,024 shards for 50 members are %d bytes", n)
	}
	for i := range MaxShards {
		a.takes = append(a.takes, take{i % MaxShards, tokens[0]})
	}
	a.takes = a.takes[1024:]
	b, n := a.encode(2000)
	got, err := decodeAnnouncement(b, MaxShards)
	if err != nil || len(b) > 2000 || len(got.takes) < 1000 || n != len(got.takes) {
		t.Errorf("%d bytes with %d takes, %v", len(b), len(got.takes), err)
	}
}

func TestTheLongestRecordAndAllMovesFitIntoAValue(t *testing.T) {
	r := record{Shards: MaxShards, Instance: "0123456789ab", Weight: MaxWeight, Ready: true, Draining: true,
		Value: bytes.Repeat([]byte{255}, MaxValue)}
	for i := range avoidMost {
		r.Avoid = append(r.Avoid, MaxShards-1-i)
	}
	a := announcement{epoch: 1 << 62, seq: 1 << 40}
	for i := range movesMost {
		a.moves = append(a.moves, move{MaxShards - 1 - i, 1 << 62, primacy.Token(1<<62 + i<<20), Health, true})
	}
	var takes int
	r.Plan, takes = a.encode(0)
	if n := len(r.encode()); n > primacy.MaxValue || takes != 0 {
		t.Errorf("the longest record with all moves has %d bytes, more than %d", n, primacy.MaxValue)
	}
}

// A value that somebody else wrote, or a store has damaged, is an error and no crash.
func TestDamagedAnnouncementsAreRefused(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	for range 5000 {
		n := 1 + r.IntN(50)
		b, _ := randomAnnouncement(r, n, 3).encode(1 << 20)
		switch r.IntN(3) {
		case 0:
			b = b[:r.IntN(len(b))]
		case 1:
			b[r.IntN(len(b))] ^= byte(1 + r.IntN(255))
		default:
			for range 4 {
				b[r.IntN(len(b))] = byte(r.Uint32())
			}
		}
		got, err := decodeAnnouncement(b, n)
		if err != nil {
			continue
		}
		for _, k := range got.takes {
			if k.shard < 0 || k.shard >= n {
				t.Fatalf("a plan names shard %d of %d", k.shard, n)
			}
		}
		for _, m := range got.moves {
			if m.shard < 0 || m.shard >= n {
				t.Fatalf("a plan moves shard %d of %d", m.shard, n)
			}
		}
	}
}

func TestANewerPlanIsOfALaterEpochOrNumber(t *testing.T) {
	a := func(epoch, seq int) announcement { return announcement{epoch: primacy.Token(epoch), seq: uint64(seq)} }
	for _, test := range []struct {
		a, b announcement
		want bool
	}{
		{a(2, 1), a(1, 9), true}, {a(1, 9), a(2, 1), false}, {a(2, 2), a(2, 1), true}, {a(2, 1), a(2, 1), false},
		{a(2, 1), a(2, 2), false}, {a(1, 1), announcement{}, true},
	} {
		if test.a.newer(test.b) != test.want {
			t.Errorf("%+v newer than %+v: %v", test.a, test.b, !test.want)
		}
	}
}

func TestPackedShards(t *testing.T) {
	all := []int{0, 1, 5, 200, 9999}
	if got := unpackShards(packShards(all), MaxShards); !slices.Equal(got, all) {
		t.Errorf("unpacked %v, want %v", got, all)
	}
	if got := unpackShards([]byte{3, 0xff}, 10); !slices.Equal(got, []int{3}) {
		t.Errorf("of damaged bytes: %v", got)
	}
	if got := unpackShards(packShards(all), 200); !slices.Equal(got, []int{0, 1, 5}) {
		t.Errorf("of a group with 200 shards: %v", got)
	}
}

func TestRecords(t *testing.T) {
	r := record{Shards: 7, Instance: "x", Weight: 2, Ready: true, Avoid: []int{1}, Value: []byte("v")}
	got, err := decodeRecord(r.encode())
	if err != nil || !reflect.DeepEqual(got, r) {
		t.Errorf("read %+v, %v, want %+v", got, err, r)
	}
	for _, bad := range []string{"", "host:80", "{}", `{"shards":-1}`, `{"shards":10001}`, `{"shards":"7"}`} {
		if _, err := decodeRecord([]byte(bad)); err == nil {
			t.Errorf("%q is taken for a record", bad)
		}
	}
}

// TestAbsencesOfAnOldGroupAreKept: who has been there for longest is not forgotten first.
func TestAbsencesOfAnOldGroupAreKept(t *testing.T) {
	st := memstore.New(memstore.Options{})
	const members = 300
	last := primacy.Token(members)
	leave := func(a absence) {
		t.Helper()
		value, err := json.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		r := driver.Record{Key: a.key(), Value: value}
		if _, added, err := st.Append(t.Context(), journalName("g"), r, absences); err != nil || !added {
			t.Fatal(added, err)
		}
	}
	for i := range members {
		a := absence{ID: fmt.Sprint("m", i), At: time.Now(), Grace: time.Hour, token: primacy.Token(i + 1), after: last}
		leave(a)
		seen, err := readAbsences(t.Context(), st, "g", time.Now())
		if err != nil || len(seen) == 0 || seen[0].ID != a.ID || seen[0].token != a.token || seen[0].Back {
			t.Fatalf("the shards of member %d of %d do not wait for it: %v", i, members, err)
		}
		last++
		a.token, a.Back = last, true
		leave(a)
		seen, err = readAbsences(t.Context(), st, "g", time.Now())
		if err != nil || seen[0].ID != a.ID || !seen[0].Back {
			t.Fatalf("that member %d is back is not seen: %+v, %v", i, seen[0], err)
		}
	}
}

// A rolling restart from the version before meets its records.
func TestTheKeyOfAnAbsenceBeforeIsRead(t *testing.T) {
	a, err := decodeAbsence(driver.Record{Key: fmt.Sprintf("%020d-left", 7), Value: []byte(`{"id":"m"}`)})
	if err != nil || a.token != 7 || a.ID != "m" {
		t.Errorf("got %+v, %v", a, err)
	}
}
