package record_test

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/record"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/etcdstore"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

func full() core.Record {
	return core.Record{Seq: 1, Token: 1 << 60, SystemID: "7300000000000000001",
		Primary: core.Identity{Name: "pg1", Incarnation: "a1"}, Timeline: 3, From: 0x3000148, Granted: 4,
		Voters: []core.Identity{{Name: "pg2", Incarnation: "b2"}}, Acks: 1, Needed: 1, Durability: core.Quorum,
		Lineage: []core.Fork{{Timeline: 3, From: 0x3000148}}, Stopped: 7,
		Paused: &core.Pause{By: "anna", Reason: "upgrade", At: time.Unix(1, 0).UTC()}}
}

// granted returns a store on an etcd of its own, a lease in it, and a context for half a minute.
func granted(t *testing.T) (context.Context, *etcdstore.Store, driver.Lease) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	s, err := etcdstore.Open(ctx, etcdstore.Config{Endpoints: []string{etcdtest.Start(t, etcdtest.Options{}).Addr()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	lease, err := s.Grant(ctx, "pg1", 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return ctx, s, lease
}

// claimed is granted with the place of a claim of the lease that leads name.
func claimed(t *testing.T, name string) (context.Context, *etcdstore.Store, driver.Lease, driver.Place) {
	t.Helper()
	ctx, s, lease := granted(t)
	places, err := lease.Claim(ctx, driver.Claim{Name: name, ID: "c1"})
	if err != nil {
		t.Fatal(err)
	}
	return ctx, s, lease, places[0]
}

// TestRecord: one writes what another reads; who has read an older one, or whose term is over,
// writes nothing.
func TestRecord(t *testing.T) {
	t.Parallel()
	const name = "postgres/orders"
	ctx, s, lease, place := claimed(t, name)
	token := place.Token
	one, two := record.New(s, name), record.New(s, name)
	if got, err := two.Read(ctx); err != nil || got != nil {
		t.Fatalf("before the first write: got %v, %v", got, err)
	}
	if _, err := one.Read(ctx); err != nil {
		t.Fatal(err)
	}
	want := full()
	if err := one.Write(ctx, want, token); err != nil {
		t.Fatal(err)
	}
	if err := two.Write(ctx, want, token); !errors.Is(err, record.ErrConflict) {
		t.Errorf("a write by who has not read the last: got %v, want ErrConflict", err)
	}
	if got, err := two.Read(ctx); err != nil || !reflect.DeepEqual(*got, want) {
		t.Errorf("read: got %+v, %v, want %+v", got, err, want)
	}
	want.Seq = 3
	if err := one.Write(ctx, want, token); !errors.Is(err, record.ErrConflict) {
		t.Errorf("a number that is not the next: got %v, want ErrConflict", err)
	}
	if err := lease.Release(ctx, place); err != nil {
		t.Fatal(err)
	}
	want.Seq = 2
	if err := one.Write(ctx, want, token); !errors.Is(err, record.ErrConflict) {
		t.Errorf("a write of a term that is over: got %v, want ErrConflict", err)
	}
}

// TestMark: what was found is told in the record's place, and only there: a record that was written
// meanwhile stays, and so does what is left of a cluster whose members have left.
func TestMark(t *testing.T) {
	t.Parallel()
	ctx, s, lease := granted(t)
	l := core.Lost{By: "pg1", Seen: 9, SystemID: "7300000000000000001"}
	told := func(r *record.Record) {
		t.Helper()
		var lost *core.Lost
		if got, err := r.Read(ctx); !errors.As(err, &lost) || *lost != l || got != nil {
			t.Errorf("a reader is told %v, %v", got, err)
		}
	}

	empty := record.New(s, "postgres/empty")
	if err := empty.Mark(ctx, nil, l); err != nil {
		t.Fatal(err)
	}
	told(record.New(s, "postgres/empty"))
	if err := empty.Mark(ctx, nil, l); !errors.Is(err, record.ErrConflict) {
		t.Errorf("a second mark: %v", err)
	}

	const name = "postgres/orders"
	places, err := lease.Claim(ctx, driver.Claim{Name: name, ID: "c1"})
	if err != nil {
		t.Fatal(err)
	}
	older := full()
	r := record.New(s, name)
	if _, err := r.Read(ctx); err != nil {
		t.Fatal(err)
	}
	if err := r.Write(ctx, older, places[0].Token); err != nil {
		t.Fatal(err)
	}
	if err := r.Mark(ctx, nil, l); !errors.Is(err, record.ErrConflict) {
		t.Errorf("there is a record, and it is marked as if there was none: %v", err)
	}
	found, err := r.Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	later := *found
	later.Seq++
	if err := r.Write(ctx, later, places[0].Token); err != nil {
		t.Fatal(err)
	}
	if err := r.Mark(ctx, found, l); !errors.Is(err, record.ErrConflict) {
		t.Errorf("a later record is marked: %v", err)
	}
	if found, err = r.Read(ctx); err != nil {
		t.Fatal(err)
	}
	if err := r.Mark(ctx, found, l); err != nil {
		t.Fatal(err)
	}
	told(r)
	first := full() // such as one by initdb
	if err := r.Write(ctx, first, places[0].Token); !errors.Is(err, record.ErrConflict) {
		t.Errorf("a first record is written over a mark that names nobody: %v", err)
	}

	gone := record.New(s, "postgres/gone")
	if _, ok, err := s.Keep(ctx, "postgres/gone", []byte("null"), 0, "", 0); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if err := gone.Mark(ctx, nil, l); !errors.Is(err, record.ErrConflict) {
		t.Errorf("a cluster whose members have left is marked: %v", err)
	}
}

// TestChoose: who was chosen writes the first record over what was found, and only over that; what
// people had asked of the cluster before is void.
func TestChoose(t *testing.T) {
	t.Parallel()
	const name = "postgres/orders"
	ctx, s, _, held := claimed(t, name)
	r := record.New(s, name)
	if _, err := r.Instruct(ctx, func(i *core.Instructions) error {
		i.Paused = &core.Pause{By: "anna"}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	place := func() record.Place {
		t.Helper()
		p, err := r.Place(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	empty := place()
	if empty.Record != nil || empty.Lost != nil || empty.Left {
		t.Errorf("nothing is %+v", empty)
	}
	l := core.Lost{By: "pg1", Seen: 9, Anew: core.Identity{Name: "pg2", Incarnation: "b2"}}
	if err := r.Choose(ctx, empty, l); err != nil {
		t.Fatal(err)
	}
	if err := r.Choose(ctx, empty, l); !errors.Is(err, record.ErrConflict) {
		t.Errorf("chosen where nothing is, and something is: %v", err)
	}
	if i, err := r.Instructions(ctx); err != nil || i.Paused != nil {
		t.Errorf("what was asked before is still asked: %+v, %v", i, err)
	}
	chosen := place()
	if chosen.Record != nil || chosen.Lost == nil || *chosen.Lost != l {
		t.Errorf("what was chosen is %+v", chosen)
	}
	var lost *core.Lost
	if _, err := r.Read(ctx); !errors.As(err, &lost) || *lost != l {
		t.Errorf("a member reads %v", err)
	}
	again := l
	again.Anew.Name = "pg3" // somebody has chosen another one meanwhile
	if err := r.Choose(ctx, chosen, again); err != nil {
		t.Fatal(err)
	}
	if err := r.Write(ctx, full(), held.Token); !errors.Is(err, record.ErrConflict) {
		t.Errorf("who is chosen no more writes the record: %v", err)
	}
	if _, err := r.Read(ctx); !errors.As(err, &lost) || *lost != again {
		t.Errorf("a member reads %v", err)
	}
	first := full()
	for _, other := range []core.Identity{l.Anew, {Name: "pg3", Incarnation: "a1"}} {
		first.Primary = other
		if err := r.Write(ctx, first, held.Token); !errors.Is(err, record.ErrConflict) {
			t.Errorf("%v, who is not chosen, writes over the choice of another: %v", other, err)
		}
	}
	first.Primary = again.Anew
	if err := r.Write(ctx, first, held.Token); err != nil {
		t.Error(err)
	}
	if p := place(); p.Record == nil || p.Record.Seq != 1 {
		t.Errorf("the record is %+v", p)
	}
	if _, err := r.Instruct(ctx, func(i *core.Instructions) error {
		i.Paused = &core.Pause{By: "anna"}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := r.Choose(ctx, chosen, l); !errors.Is(err, record.ErrConflict) {
		t.Errorf("chosen over a record: %v", err)
	}
	if i, err := r.Instructions(ctx); err != nil || i == nil || i.Paused == nil {
		t.Errorf("a choice that was refused voids what was asked: %+v, %v", i, err)
	}
}

// between is a store to which something happens after its next read under a name.
type between struct {
	record.Store
	after   string
	happens func()
}

func (b *between) Kept(ctx context.Context, name string) ([]byte, uint64, error) {
	value, version, err := b.Store.Kept(ctx, name)
	if happens := b.happens; happens != nil && name == b.after {
		b.happens = nil
		happens()
	}
	return value, version, err
}

// TestForget: a record that a new primary writes while the former one leaves stays, and so does
// what was asked of the cluster. Without that both go, also where somebody asks at the same time.
func TestForget(t *testing.T) {
	t.Parallel()
	const name = "postgres/orders"
	ctx, s, _, held := claimed(t, name)
	r := record.New(s, name)
	if _, err := r.Read(ctx); err != nil {
		t.Fatal(err)
	}
	older := full()
	if err := r.Write(ctx, older, held.Token); err != nil {
		t.Fatal(err)
	}
	pause := func() {
		if _, err := r.Instruct(ctx, func(i *core.Instructions) error {
			i.Paused = &core.Pause{By: "anna"}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	pause()
	later := older
	later.Seq++
	leaving := record.New(&between{s, name, func() {
		if err := r.Write(ctx, later, held.Token); err != nil {
			t.Error(err)
		}
	}}, name)
	if err := leaving.Forget(ctx, older); !errors.Is(err, record.ErrConflict) {
		t.Errorf("a record was written meanwhile: got %v, want ErrConflict", err)
	}
	if got, err := r.Read(ctx); err != nil || got == nil || got.Seq != later.Seq {
		t.Errorf("the record that was written meanwhile is %+v, %v", got, err)
	}
	if i, err := r.Instructions(ctx); err != nil || i == nil || i.Paused == nil {
		t.Errorf("what was asked of the cluster is %+v, %v", i, err)
	}

	leaving = record.New(&between{s, name + "/instructions", pause}, name)
	for range 2 { // the second finds that the first has done it
		if err := leaving.Forget(ctx, later); err != nil {
			t.Fatal(err)
		}
	}
	if p, err := r.Place(ctx); err != nil || !p.Left {
		t.Errorf("what stands in the place of the record is %+v, %v", p, err)
	}
	if i, err := r.Instructions(ctx); err != nil || i == nil || i.Paused != nil {
		t.Errorf("what was asked of the cluster is %+v, %v", i, err)
	}
}
