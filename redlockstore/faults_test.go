package redlockstore_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/internal/redistest"
	"github.com/primacy-go/primacy/redlockstore"
)

// grant grants a lease, and repeats that while its outcome is unknown, as the library does: on a
// busy machine a server may not answer in time.
func grant(t *testing.T, s driver.Store, who string, ttl time.Duration) (l driver.Lease) {
	t.Helper()
	ask := func() (err error) { l, err = s.Grant(limited(t, time.Minute), who, ttl); return err }
	if err := retry(limited(t, time.Minute), ask); err != nil {
		t.Fatalf("Grant: %v", err)
	}
	return l
}

func limited(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// claim makes a claim, and repeats it while its outcome is unknown, as the library does.
func claim(t *testing.T, l driver.Lease, name string) driver.Place {
	t.Helper()
	c := driver.Claim{Name: name, ID: name + l.ID() + time.Now().String()}
	var all []driver.Place
	enter := func() (err error) { all, err = l.Claim(limited(t, time.Minute), c); return err }
	if err := retry(limited(t, time.Minute), enter); err != nil {
		t.Fatalf("Claim: %v", err)
	}
	return all[0]
}

// renew is the same for a renewal.
func renew(t *testing.T, l driver.Lease) error {
	t.Helper()
	return retry(limited(t, time.Minute), func() error { return l.Renew(limited(t, time.Minute)) })
}

// release is the same for a release.
func release(t *testing.T, l driver.Lease, p ...driver.Place) error {
	t.Helper()
	return retry(limited(t, time.Minute), func() error { return l.Release(limited(t, time.Minute), p...) })
}

// try makes a claim of one who does not wait, and repeats it while its outcome is unknown.
func try(t *testing.T, l driver.Lease, name, id string) error {
	t.Helper()
	for ctx := limited(t, time.Minute); ; time.Sleep(20 * time.Millisecond) {
		_, err := l.Claim(ctx, driver.Claim{Name: name, ID: id, Try: true})
		if err == nil || driver.IsFinal(err) || ctx.Err() != nil {
			return err
		}
	}
}

func wait(t *testing.T, l driver.Lease, p driver.Place, d time.Duration) (driver.Place, error) {
	t.Helper()
	ctx := limited(t, d)
	for {
		got, err := drivertest.Await(ctx, l, p)
		if err == nil || errors.Is(err, driver.ErrGone) || ctx.Err() != nil {
			return got, err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// keys says on which servers name is held by anybody.
func keys(all []*redistest.Server, name string) (on []int) {
	for i, s := range all {
		if s.Do("EXISTS", "primacy:lock:"+name) == int64(1) {
			on = append(on, i)
		}
	}
	return on
}

// Two of five are killed, or frozen. Leases are renewed, claims made and handed on, and only the
// first call pays for the silence.
func TestAMinorityMayFail(t *testing.T) {
	t.Parallel()
	for what, fail := range map[string]func(*redistest.Server){"killed": (*redistest.Server).Kill, "frozen": (*redistest.Server).Stop} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			servers, c := fleet(t, 5)
			a, b := grant(t, open(t, c), "a", time.Minute), grant(t, open(t, c), "b", time.Minute)
			p := claim(t, a, "x")
			for range 100 { // a server that was too slow for the claim has its key after a renewal
				if len(keys(servers, "x")) == len(servers) {
					break
				}
				if err := renew(t, a); err != nil {
					t.Fatalf("Renew: %v", err)
				}
				time.Sleep(100 * time.Millisecond)
			}
			for _, s := range servers[:2] {
				fail(s)
			}
			q := claim(t, b, "x")
			if q.Held {
				t.Fatal("two hold")
			}
			for range 6 {
				if err := renew(t, a); err != nil {
					t.Fatalf("Renew: %v", err)
				}
				time.Sleep(50 * time.Millisecond)
			}
			if err := release(t, a, p); err != nil {
				t.Fatalf("Release: %v", err)
			}
			if _, err := wait(t, b, q, time.Minute); err != nil {
				t.Fatalf("Wait: %v", err)
			}
			least := time.Hour
			for i := range 50 {
				begun, name := time.Now(), fmt.Sprint("y", i)
				if err := release(t, b, claim(t, b, name)); err != nil {
					t.Fatal(err)
				}
				if err := renew(t, b); err != nil {
					t.Fatal(err)
				}
				least = min(least, time.Since(begun))
			}
			if least > 400*time.Millisecond { // each call that waits for the silent takes 500
				t.Errorf("claim, release and renewal took %v and more beside a silent minority", least)
			}
		})
	}
}

// Without a majority nobody is granted anything, nothing is renewed, and the error names who is
// missing. When it is back all goes on.
func TestWithoutAMajorityNobodyIsGranted(t *testing.T) {
	t.Parallel()
	servers, c := fleet(t, 3)
	s := open(t, c)
	const ttl = 8 * time.Second
	a, b := grant(t, s, "a", ttl), grant(t, open(t, c), "b", time.Minute)
	claim(t, a, "x")
	var renewed time.Time
	if err := retry(limited(t, time.Minute), func() error {
		renewed = time.Now()
		return a.Renew(limited(t, time.Minute))
	}); err != nil {
		t.Fatal(err)
	}
	servers[0].Stop()
	servers[1].Kill()
	err := a.Renew(limited(t, time.Minute))
	if err == nil || errors.Is(err, driver.ErrGone) {
		t.Errorf("Renew without a majority = %v, want an unknown outcome", err)
	}
	for _, dead := range servers[:2] {
		if err != nil && !strings.Contains(err.Error(), dead.Addr()) {
			t.Errorf("Renew = %q, want it to name %s", err, dead.Addr())
		}
	}
	if _, err := b.Claim(limited(t, time.Minute), driver.Claim{Name: "free", ID: "1", Try: true}); err == nil ||
		errors.Is(err, driver.ErrTaken) {
		t.Errorf("Claim without a majority = %v, want an unknown outcome", err)
	}
	if _, err := s.Grant(limited(t, time.Minute), "c", ttl); err == nil {
		t.Error("Grant without a majority = nil")
	}
	time.Sleep(time.Until(renewed.Add(ttl + ttl/10)))
	if err := a.Renew(limited(t, time.Minute)); !errors.Is(err, driver.ErrGone) {
		t.Errorf("Renew after the ttl = %v, want ErrGone", err)
	}
	servers[0].Cont()
	servers[1].Restart()
	if err := retry(limited(t, time.Minute), func() error {
		return b.Renew(limited(t, time.Minute))
	}); err != nil {
		t.Errorf("Renew when the majority is back: %v", err)
	}
	if p := claim(t, b, "x"); !p.Held {
		t.Error("Claim after the former holder's end: not held")
	}
}

func retry(ctx context.Context, do func() error) error {
	for {
		err := do()
		if err == nil || ctx.Err() != nil {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// A claim stands on two of three; one of these restarts without its keys. It must not give its
// voice to another while the first may rely on it.
func TestARestartedServerStaysOut(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second // within which a busy machine claims
	servers, c := fleet(t, 3)
	c.Guard = 0
	_, err := open(t, c).Grant(limited(t, time.Minute), "a", ttl)
	if err == nil || !strings.Contains(err.Error(), "started less than") {
		t.Errorf("Grant on young servers = %v, want to be told so", err)
	}
	c.MaxTTL = ttl
	s := open(t, c)
	var a driver.Lease
	first := func() (err error) { a, err = s.Grant(limited(t, time.Minute), "a", ttl); return err }
	other := open(t, c)
	var b driver.Lease
	again := func() (err error) { b, err = other.Grant(limited(t, time.Minute), "b", ttl); return err }
	for _, grant := range []func() error{again, first} { // once they are old enough
		if err := retry(limited(t, time.Minute), grant); err != nil {
			t.Fatal(err)
		}
	}
	servers[2].Stop()
	asked := time.Now() // the keys live for a ttl from then on, or for longer
	if p := claim(t, a, "x"); !p.Held {
		t.Fatal("not held on two of three")
	}
	servers[2].Cont()
	servers[0].Restart()
	stop := time.Now().Add(time.Minute)
	for n := 0; time.Now().Before(stop); n++ {
		if err := b.Renew(limited(t, time.Minute)); errors.Is(err, driver.ErrGone) && again() != nil {
			continue
		}
		places, err := b.Claim(limited(t, time.Minute), driver.Claim{Name: "x", ID: fmt.Sprint(n), Try: true})
		if err == nil && places[0].Held {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if took := time.Since(asked); took < ttl-5*time.Millisecond {
		t.Errorf("another holds %v after the first, whose lease lasts %v", took, ttl)
	}
}

// What a server said in its first life does not count in its second: the holder loses what he has
// there, and hears of it when that was his majority.
func TestAHolderThatLosesItsMajorityIsTold(t *testing.T) {
	t.Parallel()
	servers, c := fleet(t, 3)
	s := open(t, c)
	a := grant(t, s, "a", time.Minute)
	p := claim(t, a, "x")
	for _, s := range servers[:2] {
		s.Restart()
	}
	err := retry(limited(t, time.Minute), func() error {
		if err := a.Renew(limited(t, time.Minute)); err != nil &&
			strings.Contains(err.Error(), "lost its majority") {
			return nil
		}
		return errors.New("no")
	})
	if err != nil {
		t.Error("Renew never said that the claim is lost")
	}
	if err := a.Renew(limited(t, time.Minute)); err == nil {
		t.Error("Renew before its owner heard of the loss = nil: his deadline moved")
	}
	news, err := a.News(limited(t, time.Minute))
	if err != nil || len(news) != 1 || !news[0].Gone || news[0].Place.ID != p.ID {
		t.Errorf("News = %+v, %v, want that the claim is gone", news, err)
	}
	if err := renew(t, a); err != nil {
		t.Errorf("Renew once it is known: %v", err)
	}
	if p := claim(t, grant(t, open(t, c), "b", time.Minute), "x"); !p.Held {
		t.Error("what is left of a lost claim blocks the next")
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	servers, c := fleet(t, 3)
	secret := redistest.Start(t, redistest.Options{Password: "open"})
	secrets := redistest.Start(t, redistest.Options{Password: "open"})
	part := redistest.Start(t, redistest.Options{Cluster: true})
	long := func() context.Context { return limited(t, time.Minute) }
	for what, tc := range map[string]struct {
		change func(c *redlockstore.Config)
		want   string
	}{
		"nobody":      {func(c *redlockstore.Config) { c.Addrs = nil }, "no server is named"},
		"no port":     {func(c *redlockstore.Config) { c.Addrs = []string{"localhost"} }, "host:port"},
		"twice":       {func(c *redlockstore.Config) { c.Addrs = []string{c.Addrs[0], c.Addrs[0], c.Addrs[1]} }, "named twice"},
		"short guard": {func(c *redlockstore.Config) { c.Guard = time.Second }, "guard"},
		"long ttl":    {func(c *redlockstore.Config) { c.MaxTTL = 2 * time.Hour }, "largest ttl"},
		"login": {func(c *redlockstore.Config) {
			c.Addrs[0], c.Addrs[1], c.Password = secret.Addr(), secrets.Addr(), "sesame"
		}, "WRONGPASS"},
		"cluster": {func(c *redlockstore.Config) { c.Addrs[0] = part.Addr() }, "part of a Redis Cluster"},
		"no login": {func(c *redlockstore.Config) {
			c.Addrs[0], c.Addrs[1] = secret.Addr(), secrets.Addr()
		}, "NOAUTH"},
		"no such user": {func(c *redlockstore.Config) { c.Username, c.Password = "ghost", "sesame" }, "WRONGPASS"},
	} {
		d := c
		d.Addrs = append([]string(nil), c.Addrs...)
		tc.change(&d)
		s, err := redlockstore.Open(long(), d)
		if err == nil {
			s.Close()
		}
		if !errors.Is(err, driver.ErrRefused) || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "sesame") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: Open = %v, want it refused for %q in one line without the password", what, err, tc.want)
		}
	}
	for _, s := range servers[:2] {
		s.Kill()
	}
	begun := time.Now()
	if _, err := redlockstore.Open(long(), c); err == nil || !strings.Contains(err.Error(), "refused") ||
		time.Since(begun) > 40*time.Second {
		t.Errorf("Open of dead servers = %v after %v, want that they refuse connections, at once", err, time.Since(begun))
	}
}

// openRefused opens a store that has heard that one of its servers does not let it in. Open waits
// for a majority, and for the others for a moment: on a busy machine their answers come too late.
func openRefused(t *testing.T, c redlockstore.Config, by *redistest.Server) *redlockstore.Store {
	t.Helper()
	for ctx := limited(t, 30*time.Second); ; {
		s := open(t, c)
		if strings.Contains(fmt.Sprint(s.Caps().Warnings), by.Addr()+": NOAUTH") || ctx.Err() != nil {
			return s
		}
	}
}

// One server of three that does not let us in is one that does not vote: told, and no more.
func TestAServerThatRefusesTheLoginIsAMinority(t *testing.T) {
	t.Parallel()
	_, c := fleet(t, 3)
	secret := redistest.Start(t, redistest.Options{Password: "open"})
	c.Addrs[1] = secret.Addr()
	begun := time.Now()
	s := openRefused(t, c, secret)
	if d := time.Since(begun); d > 40*time.Second {
		t.Errorf("Open took %v", d)
	}
	if all := strings.Join(s.Caps().Warnings, "\n"); !strings.Contains(all, secret.Addr()+": NOAUTH") ||
		!strings.Contains(all, "did not let us in when the store was opened; a majority did") {
		t.Errorf("warnings: %s", all)
	}
	a, b := grant(t, s, "a", time.Minute), grant(t, s, "b", time.Minute)
	p := claim(t, a, "x")
	if !p.Held || claim(t, b, "x").Held {
		t.Errorf("two of three: %+v", p)
	}
	if err := release(t, a, p); err != nil {
		t.Errorf("Release = %v", err)
	}
}

// Where some do not let us in and others refuse the connection, no majority is left: that is told
// at once, like a majority that refuses the connection. It is no final refusal: those may come up.
func TestOpenWithoutAMajorityFailsAtOnce(t *testing.T) {
	t.Parallel()
	servers, c := fleet(t, 3)
	secret := redistest.Start(t, redistest.Options{Password: "open"})
	c.Addrs[1] = secret.Addr()
	servers[2].Kill()
	begun := time.Now()
	s, err := redlockstore.Open(limited(t, time.Minute), c)
	if err == nil {
		s.Close()
		t.Fatal("opened with one server of three")
	}
	if errors.Is(err, driver.ErrRefused) || errors.Is(err, context.DeadlineExceeded) ||
		time.Since(begun) > 40*time.Second || !strings.Contains(err.Error(), servers[2].Addr()+": ") ||
		!strings.Contains(err.Error(), secret.Addr()+": NOAUTH") {
		t.Errorf("Open = %v after %v, want both servers named at once, and no final refusal", err, time.Since(begun))
	}
	servers[2].Restart()
	open(t, c)
}

// Caps is what it was when the store was opened, whoever answers later.
func TestCapsStayAsTheyWere(t *testing.T) {
	t.Parallel()
	_, c := fleet(t, 3)
	secret := redistest.Start(t, redistest.Options{Password: "open"})
	c.Addrs[1] = secret.Addr()
	s := openRefused(t, c, secret)
	before := s.Caps()
	secret.Do("ACL", "SETUSER", "default", "nopass")
	l := grant(t, s, "a", time.Minute)
	claim(t, l, "x")
	end := time.Now().Add(time.Minute)
	for ; len(keys([]*redistest.Server{secret}, "x")) == 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the server that lets us in gets no calls")
		}
		if err := renew(t, l); err != nil {
			t.Fatal(err)
		}
	}
	if after := s.Caps(); !reflect.DeepEqual(before, after) ||
		!strings.Contains(fmt.Sprint(before.Warnings), secret.Addr()) {
		t.Errorf("Caps were %+v and are %+v", before, after)
	}
}

// A server that is silent is waited for; a majority that answers is enough.
func TestOpenWaits(t *testing.T) {
	t.Parallel()
	servers, c := fleet(t, 3)
	servers[0].Stop()
	open(t, c)
	servers[1].Stop()
	if _, err := redlockstore.Open(limited(t, 3*time.Second), c); !errors.Is(err, context.DeadlineExceeded) ||
		!strings.Contains(err.Error(), "1 of 3") {
		t.Errorf("Open without a majority = %v, want the context's end and how many answered", err)
	}
	go func() {
		time.Sleep(500 * time.Millisecond)
		servers[1].Cont()
	}()
	open(t, c)
}

func TestOneServerByTwoNames(t *testing.T) {
	t.Parallel()
	_, c := fleet(t, 2)
	_, port, _ := strings.Cut(c.Addrs[0], ":")
	c.Addrs = append(c.Addrs, "localhost:"+port)
	s, err := redlockstore.Open(limited(t, time.Minute), c)
	if !errors.Is(err, driver.ErrRefused) || !strings.Contains(err.Error(), "same server") {
		t.Errorf("Open = %v, %v, want it refused: one server would vote twice", s, err)
	}
}
