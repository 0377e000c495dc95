package redisstore

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/primacy-go/primacy/internal/redistest"
	"github.com/primacy-go/primacy/internal/servertest"
)

// Who is asked where the server is may be dead, frozen, or of a former othersLimit.
func TestFind(t *testing.T) {
	const dead, frozen = "dead", "frozen"
	for name, c := range map[string]struct {
		say  []string
		want string
		in   time.Duration
	}{
		"all agree":                      {[]string{"a", "a", "a"}, "a", 0},
		"most agree":                     {[]string{"a", "b", "a"}, "a", 0},
		"most agree, one is frozen":      {[]string{"a", frozen, "a"}, "a", 0},
		"most agree, one is dead":        {[]string{dead, "a", "a"}, "a", 0},
		"one of three is left":           {[]string{dead, "a", dead}, "a", 0},
		"one of three answers":           {[]string{frozen, "a", frozen}, "a", othersLimit},
		"most of those that answer":      {[]string{"a", "b", frozen, "b", frozen, frozen}, "b", othersLimit},
		"nobody answers":                 {[]string{frozen, frozen}, "", dialLimit},
		"nobody is there":                {[]string{dead, dead}, "", 0},
		"nobody is there, one is silent": {[]string{dead, frozen}, "", dialLimit},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &finder{who: "the sentinels"}
				for i := range c.say {
					f.first = append(f.first, string(rune('0'+i)))
				}
				f.ask = func(ctx context.Context, addr string) (string, []string, error) {
					switch say := c.say[addr[0]-'0']; say {
					case dead:
						return "", nil, errors.New("dead")
					case frozen:
						<-ctx.Done()
						return "", nil, ctx.Err()
					default:
						return say, nil, nil
					}
				}
				begun := time.Now()
				got, err := f.find(t.Context())
				if took := time.Since(begun); got != c.want || (err == nil) != (c.want != "") || took != c.in {
					t.Errorf("find = %q, %v after %v, want %q after %v", got, err, took, c.want, c.in)
				}
			})
		})
	}
}

// Of a cluster the one address that was given may die, when others have become known. A server that
// cannot be dialed is looked for again.
func TestFindAgain(t *testing.T) {
	where, up := "m1", []string{"first", "m1"}
	var mu sync.Mutex
	var dialed, asked []string
	f := &finder{who: "the cluster", first: []string{"first"}}
	f.ask = func(_ context.Context, addr string) (string, []string, error) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, addr)
		if !slices.Contains(up, addr) {
			return "", nil, errors.New("dead")
		}
		return where, []string{"m2"}, nil
	}
	f.reach = func(_ context.Context, _, addr string) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		dialed = append(dialed, addr)
		if !slices.Contains(up, addr) {
			return nil, errors.New("dead")
		}
		return nil, nil
	}
	dial := f.dialer()
	ctx := t.Context()
	for range 2 {
		if _, err := dial(ctx, "tcp", ""); err != nil {
			t.Fatal(err)
		}
	}
	mu.Lock()
	where, up = "m2", []string{"m2"}
	mu.Unlock()
	_, err1 := dial(ctx, "tcp", "") // finds it dead
	_, err2 := dial(ctx, "tcp", "")
	mu.Lock()
	defer mu.Unlock()
	if err1 == nil || err2 != nil || strings.Join(dialed, " ") != "m1 m1 m1 m2" || len(asked) < 2 || asked[0] != "first" {
		t.Errorf("dialed %v after asking %v: %v, %v", dialed, asked, err1, err2)
	}
}

func TestSeenFrom(t *testing.T) {
	for _, c := range [][3]string{
		{"10.0.0.1:6379", "10.0.0.2:6380", "10.0.0.2:6380"},
		{"10.0.0.1:6379", ":6380", "10.0.0.1:6380"},
		{"redis.example:6379", "127.0.0.1:6380", "redis.example:6380"},
		{"10.0.0.1:6379", "127.0.0.1:6380", "10.0.0.1:6380"},
		{"127.0.0.1:6379", "127.0.0.1:6380", "127.0.0.1:6380"},
		{"localhost:6379", "127.0.0.1:6380", "127.0.0.1:6380"},
		{"[::1]:6379", "[::1]:6380", "[::1]:6380"},
		{"10.0.0.1:6379", "node2.example:6380", "node2.example:6380"},
	} {
		if got := seenFrom(c[0], c[1]); got != c[2] {
			t.Errorf("seenFrom(%q, %q) = %q, want %q", c[0], c[1], got, c[2])
		}
	}
}

func TestSlotOf(t *testing.T) {
	t.Parallel()
	srv := redistest.StartCluster(t, 1, 0, redistest.Options{})[0]
	for _, tag := range []string{"primacy", "a", "123456789", "with spaces and \xff", "\x00"} {
		if want := srv.Do("CLUSTER", "KEYSLOT", "{"+tag+"}:server").(int64); slotOf(tag) != int(want) {
			t.Errorf("slotOf(%q) = %d, want %d", tag, slotOf(tag), want)
		}
	}
}

// Those who are asked may lag behind a failover and name what is a replica by now: Open asks them
// again.
func TestOpenDuringAFailover(t *testing.T) {
	servertest.Long(t, "race-library")
	t.Parallel()
	primary := redistest.Start(t, redistest.Options{})
	replica := redistest.Start(t, redistest.Options{Replica: primary})
	var asked atomic.Int32
	f := &finder{who: "the sentinels", first: []string{"s"}, reach: straight(nil)}
	f.ask = func(context.Context, string) (string, []string, error) {
		if asked.Add(1) <= 2 {
			return replica.Addr(), nil, nil
		}
		return primary.Addr(), nil, nil
	}
	s := &Store{server: newServer("{primacy}:", "s", false, 0, f.found(redis.Options{}))}
	defer s.Close()
	if err := s.identify(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if asked.Load() < 3 {
		t.Errorf("they were asked %d times, want until they name the primary", asked.Load())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	asked.Store(-1 << 20)
	other := &Store{server: newServer("{primacy}:", "s", false, 0, f.found(redis.Options{}))}
	defer other.Close()
	if err := other.identify(ctx, true); err == nil {
		t.Error("Open of a replica that stays one = nil")
	}
}
