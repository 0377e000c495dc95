package registerstore

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/primacy-go/primacy/driver"
)

// owners are leases that a test changes a document for.
type owners map[string]map[string]bool

func (o owners) me(lease string) self {
	if o[lease] == nil {
		o[lease] = map[string]bool{}
	}
	return self{lease: lease, owner: "of " + lease, spent: func(id string) bool { return o[lease][id] }, spend: func(id string) { o[lease][id] = true }}
}

// does carries out one step, as the store would.
func does[T any](d **document, f func(*document) (T, error)) (T, error) {
	to := (*d).clone()
	got, err := f(to)
	if to.Rev != (*d).Rev || to.Requests != (*d).Requests {
		to.next(*d, "m")
		*d = to
	}
	return got, err
}

func entered(t *testing.T, d **document, me self, claims ...driver.Claim) []driver.Place {
	t.Helper()
	places, err := does(d, func(d *document) ([]driver.Place, error) { return d.enter(me, claims) })
	if err != nil {
		t.Fatal(err)
	}
	return places
}

// brief is a line in short: the IDs in their order, with * those that hold.
func brief(d *document) string {
	var b strings.Builder
	for i, c := range d.Claims {
		b.WriteString(string(c.ID))
		if d.held(i) {
			b.WriteByte('*')
		}
		b.WriteByte(' ')
	}
	return strings.TrimSpace(b.String())
}

func fresh() *document {
	d, err := parse("n", nil, "")
	if err != nil {
		panic(err)
	}
	return d
}

func TestStepsOfADocument(t *testing.T) {
	o := owners{}
	a, b, c := o.me("a"), o.me("b"), o.me("c")
	d := fresh()
	p := entered(t, &d, a, driver.Claim{Name: "n", ID: "1", Value: []byte("v")})[0]
	q := entered(t, &d, b, driver.Claim{Name: "n", ID: "2"})[0]
	entered(t, &d, c, driver.Claim{Name: "n", ID: "3"})
	if got := brief(d); got != "1* 2 3" || !p.Held || q.Held || q.Token != p.Token+1 {
		t.Fatalf("line = %s, places %+v and %+v", got, p, q)
	}
	rev := d.Rev
	if again := entered(t, &d, b, driver.Claim{Name: "n", ID: "2"})[0]; again != q || d.Rev != rev {
		t.Errorf("the same claim again = %+v, revision %d, want %+v and %d", again, d.Rev, q, rev)
	}
	_, err := does(&d, func(d *document) (int, error) {
		_, err := d.enter(b, []driver.Claim{{Name: "n", Seat: "x", ID: "4", Try: true}})
		return 0, err
	})
	if !errors.Is(err, driver.ErrTaken) || d.Rev != rev || d.Token != 3 {
		t.Errorf("a try behind others = %v, revision %d, token %d; want ErrTaken and nothing changed", err, d.Rev, d.Token)
	}
	if err := d.clone().transfer(a, p, 9); !errors.Is(err, driver.ErrNoSuccessor) {
		t.Errorf("transfer to nobody = %v", err)
	}
	if _, err := does(&d, func(d *document) (int, error) { return 0, d.transfer(a, p, 3) }); err != nil || brief(d) != "3*" {
		t.Errorf("transfer = %v, line %s, want 3 alone", err, brief(d))
	}
	if _, err := d.clone().enter(b, []driver.Claim{{Name: "n", ID: "2"}}); !errors.Is(err, driver.ErrGone) {
		t.Errorf("a claim that was passed over, again = %v, want ErrGone", err)
	}
	entered(t, &d, b, driver.Claim{Name: "n", ID: "5"})
	if d.Claims[1].Token != 4 {
		t.Errorf("token = %d, want 4: it never goes back", d.Claims[1].Token)
	}
	if _, err := does(&d, func(d *document) (int, error) { return 0, d.ask(driver.Request{Token: 3, By: "x"}) }); err != nil || len(d.Claims[0].Requests) != 1 {
		t.Errorf("ask = %v, %+v", err, d.Claims[0])
	}
	at := d.Rev
	if err := d.clone().ask(driver.Request{Token: 4}); !errors.Is(err, driver.ErrGone) || d.Rev != at {
		t.Errorf("ask of one who waits = %v", err)
	}
	_, _ = does(&d, func(d *document) (int, error) {
		d.purge(func(lease string) bool { return lease == "c" })
		return 0, nil
	})
	if brief(d) != "5*" || d.Rev <= at {
		t.Errorf("line without the dead = %s, revision %d after %d", brief(d), d.Rev, at)
	}
}

// What a verb refuses it has not done: the document is as before.
func TestWhatADocumentRefuses(t *testing.T) {
	o := owners{}
	a, b := o.me("a"), o.me("b")
	d := fresh()
	p := entered(t, &d, a, driver.Claim{Name: "n", ID: "1"})[0]
	own := entered(t, &d, a, driver.Claim{Name: "n", Seat: "x", ID: "2"})[0]
	heir := entered(t, &d, b, driver.Claim{Name: "n", ID: "3"})[0]
	other := p
	other.Token++
	for _, c := range []struct {
		what      string
		place     driver.Place
		successor uint64
		want      error
	}{
		{"of an earlier term", other, heir.Token, driver.ErrGone},
		{"to a claim of the same lease", p, own.Token, driver.ErrRefused},
		{"of one who waits", own, heir.Token, driver.ErrRefused},
	} {
		_, err := does(&d, func(d *document) (int, error) { return 0, d.transfer(a, c.place, c.successor) })
		if !errors.Is(err, c.want) || brief(d) != "1* 2 3" {
			t.Errorf("transfer %s = %v, line %s, want %v and nothing changed", c.what, err, brief(d), c.want)
		}
	}
	shared := fresh()
	q := entered(t, &shared, a, driver.Claim{Name: "n", ID: "1", Slots: 2})[0]
	if err := shared.clone().ask(driver.Request{Token: q.Token}); !errors.Is(err, driver.ErrRefused) {
		t.Errorf("ask of one who holds a share = %v, want ErrRefused", err)
	}
}

// An exchange for a seat on which the lease has another claim gives that up too: the new claim
// would get its term, which is being resigned.
func TestAnExchangeTakesNoPlaceUp(t *testing.T) {
	o := owners{}
	a := o.me("a")
	d := fresh()
	p := entered(t, &d, a, driver.Claim{Name: "n", ID: "1"})[0]
	old := entered(t, &d, a, driver.Claim{Name: "n", Seat: "x", ID: "2"})[0]
	got, err := does(&d, func(d *document) (driver.Place, error) {
		place, _, err := d.exchange(a, p, driver.Claim{Name: "n", Seat: "x", ID: "3"})
		return place, err
	})
	if err != nil || got.ID != "3" || got.Token <= old.Token || brief(d) != "3*" || !o["a"]["2"] {
		t.Errorf("exchange = %+v, %v, line %s, want a claim of its own in place of both", got, err, brief(d))
	}
}

// Rules that hold of every document, whatever is done to it: checked over random verbs.
func TestDocumentsOverRandomVerbs(t *testing.T) {
	for seed := range uint64(50) {
		rnd, o, d := rand.New(rand.NewPCG(seed, 0)), owners{}, fresh()
		var all []driver.Place
		var of []string
		removed := map[string]bool{}
		for n := range 120 {
			before, lease := d, fmt.Sprint("l", rnd.IntN(4))
			me := o.me(lease)
			some := func() (driver.Place, bool) {
				if len(all) == 0 {
					return driver.Place{}, false
				}
				i := rnd.IntN(len(all))
				me = o.me(of[i])
				return all[i], true
			}
			switch rnd.IntN(7) {
			case 0, 1, 2:
				want := driver.Claim{Name: "n", Seat: []string{"", "2"}[rnd.IntN(2)], ID: fmt.Sprint(n), Slots: []int{0, 0, 2}[rnd.IntN(3)], Try: rnd.IntN(4) == 0}
				got, err := does(&d, func(d *document) ([]driver.Place, error) { return d.enter(me, []driver.Claim{want}) })
				if err == nil {
					all, of = append(all, got[0]), append(of, lease)
				}
			case 3:
				if p, ok := some(); ok {
					_, _ = does(&d, func(d *document) (bool, error) { me.spend(p.ID); return d.drop(me, p), nil })
				}
			case 4:
				if p, ok := some(); ok && len(d.Claims) > 0 {
					_, err := does(&d, func(d *document) (bool, error) { return false, d.transfer(me, p, d.Claims[len(d.Claims)-1].Token) })
					if err == nil {
						me.spend(p.ID)
					}
				}
			case 5:
				if p, ok := some(); ok && p.Slots == 0 {
					want := driver.Claim{Name: "n", Seat: p.Seat + "x", ID: fmt.Sprint(n)}
					if got, err := does(&d, func(d *document) (driver.Place, error) { p, _, err := d.exchange(me, p, want); return p, err }); err == nil {
						me.spend(p.ID)
						all, of = append(all, got), append(of, me.lease)
					}
				}
			case 6:
				if p, ok := some(); ok {
					_, _ = does(&d, func(d *document) (bool, error) {
						_, err := d.enter(me, []driver.Claim{{Name: "n", Seat: p.Seat, Slots: p.Slots, ID: p.ID}})
						return false, err
					})
				}
			}
			for _, c := range before.Claims {
				if !slices.ContainsFunc(d.Claims, func(k claim) bool { return k.ID == c.ID }) {
					removed[string(c.ID)] = true
				}
			}
			checkDocument(t, seed, before, d, removed)
			if t.Failed() {
				return
			}
		}
	}
}

func checkDocument(t *testing.T, seed uint64, before, d *document, removed map[string]bool) {
	t.Helper()
	if d.Token < before.Token || d.Seq < before.Seq || d.Rev < before.Rev || d.Rev > d.Seq {
		t.Errorf("seed %d: token %d, seq %d, rev %d after %d, %d, %d", seed, d.Token, d.Seq, d.Rev, before.Token, before.Seq, before.Rev)
	}
	if d.Rev == before.Rev && !reflect.DeepEqual(d.show(), before.show()) {
		t.Errorf("seed %d: the line changed under one revision", seed)
	}
	seats := map[string]bool{}
	for i, c := range d.Claims {
		if i > 0 && d.Claims[i-1].Token >= c.Token || c.Token > d.Token {
			t.Errorf("seed %d: tokens out of order: %+v", seed, d.Claims)
		}
		if at := c.Lease + " " + string(c.Seat); seats[at] {
			t.Errorf("seed %d: two claims on seat %s", seed, at)
		} else {
			seats[at] = true
		}
		if removed[string(c.ID)] {
			t.Errorf("seed %d: claim %s was removed and entered again", seed, c.ID)
		}
	}
	back, err := parse("n", stored(d), "1")
	if err != nil || !reflect.DeepEqual(back.show(), d.show()) || back.Token != d.Token {
		t.Errorf("seed %d: written and read: %v, %+v, want %+v", seed, err, back, d)
	}
}

func TestADocumentOfSomethingElseIsRefused(t *testing.T) {
	for _, value := range []string{"", "x", "{}", `{"name":"m","seq":2,"rev":2}`, `{"name":"n","seq":1,"rev":2}`, "[]", "null"} {
		if _, err := parse("n", []byte(value), "1"); !errors.Is(err, driver.ErrRefused) || strings.Contains(err.Error(), "\n") {
			t.Errorf("a line that is %q = %v, want one line that refuses it", value, err)
		}
	}
	for _, value := range []string{"", "x", "{}", `{"ttl":-1}`, "null"} {
		if _, err := parseLease("l", []byte(value), "1"); !errors.Is(err, driver.ErrRefused) {
			t.Errorf("a lease that is %q = %v, want it refused", value, err)
		}
	}
}

func TestKeysTellNamesApart(t *testing.T) {
	s, err := FromRegister(nowhere{}, Options{Prefix: "p."})
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("é", 300)
	seen := map[string]string{}
	for _, name := range []string{"a", "A", "a/b", "a-2fb", "a.b", "-", "", "\xff", "\xfe", "a ", long, long + "x", long[:120], strings.Repeat("a", 120), strings.Repeat("a", 121), "ä", "a-x"} {
		key := s.lineKey(name)
		if other, taken := seen[key]; taken {
			t.Errorf("%q and %q have one key %s", name, other, key)
		}
		seen[key] = name
		if strings.Trim(key, "abcdefghijklmnopqrstuvwxyz0123456789-.") != "" || len(key) > 200 {
			t.Errorf("key of %q = %s", name, key)
		}
		for i := range len(name) {
			if !strings.HasPrefix(key, "p.line."+prefixPart(name[:i])) {
				t.Errorf("the key of %q does not begin with that of its prefix %q", name, name[:i])
			}
		}
	}
}

// nowhere is a register that is not used.
type nowhere struct{ Register }

func TestOptionsThatContradictThemselves(t *testing.T) {
	for _, o := range []Options{{Poll: -1}, {Patience: -1}, {MinTTL: 2, MaxTTL: 1}, {MinTTL: -1}, {Journal: 1}} {
		if s, err := FromRegister(nowhere{}, o); err == nil || s != nil || !strings.HasPrefix(err.Error(), "register store: ") {
			t.Errorf("FromRegister with %+v = %v, %v, want an error", o, s, err)
		}
	}
	if _, err := FromRegister(nil, Options{}); err == nil {
		t.Error("FromRegister(nil) = nil, want an error")
	}
}
