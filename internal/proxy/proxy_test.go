package proxy_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/proxy"
	"github.com/primacy-go/primacy/internal/servertest"
)

// through starts a server that answers each line with itself, and a proxy to it.
func through(t *testing.T) *proxy.Proxy {
	t.Helper()
	p, err := proxy.Listen(servertest.Listen(t, servertest.Echo))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// client is one connection, read by lines.
type client struct {
	*testing.T
	net.Conn
	lines *bufio.Reader
}

func dial(t *testing.T, p *proxy.Proxy) *client {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &client{t, c, bufio.NewReader(c)}
}

func (c *client) says(text string) {
	c.Helper()
	if _, err := fmt.Fprintln(c, text); err != nil {
		c.Fatal(err)
	}
}

func (c *client) hears(text string) {
	c.Helper()
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	if got, err := c.lines.ReadString('\n'); got != text+"\n" {
		c.Fatalf("heard %q, %v, want %q", got, err, text)
	}
}

func (c *client) hearsNothing() {
	c.Helper()
	_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if got, err := c.lines.ReadString('\n'); !errors.Is(err, os.ErrDeadlineExceeded) {
		c.Fatalf("heard %q, %v, want silence", got, err)
	}
}

func (c *client) hearsTheEnd() {
	c.Helper()
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	if got, err := io.ReadAll(c.lines); len(got) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		c.Fatalf("heard %q, %v, want the end of the connection", got, err)
	}
}

func TestHoldIsSilentInOneDirectionAndHealDelivers(t *testing.T) {
	for _, dir := range []proxy.Dir{proxy.Up, proxy.Down} {
		p := through(t)
		c := dial(t, p)
		c.says("one")
		c.hears("one")
		p.Hold(dir)
		c.says("two")
		c.hearsNothing()
		for end := time.Now().Add(time.Minute); !p.Holds(dir, []byte("two")); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("direction %v does not hold what was sent", dir)
			}
		}
		if p.Holds(1-dir, []byte("two")) {
			t.Errorf("direction %v holds it too", 1-dir)
		}
		p.Heal()
		c.hears("two")
	}
}

func TestCutClosesAndRefusesUntilHealed(t *testing.T) {
	p := through(t)
	c := dial(t, p)
	c.says("one")
	c.hears("one")
	p.Cut()
	c.hearsTheEnd()
	dial(t, p).hearsTheEnd()
	p.Heal()
	c = dial(t, p)
	c.says("two")
	c.hears("two")
}

func TestDelayTakesItsTimeAndEndsWithHeal(t *testing.T) {
	p := through(t)
	c := dial(t, p)
	p.Delay(60*time.Millisecond, proxy.Up)
	begun := time.Now()
	c.says("slow")
	c.hears("slow")
	if took := time.Since(begun); took < 60*time.Millisecond {
		t.Errorf("took %v, want 60 ms at least", took)
	}
	p.Delay(time.Hour)
	c.says("late")
	c.hearsNothing()
	p.Heal()
	c.hears("late")
}

func TestSealDeliversWhatIsHeldAndLosesTheRest(t *testing.T) {
	p := through(t)
	c := dial(t, p)
	p.Hold(proxy.Up)
	c.says("held")
	for end := time.Now().Add(time.Minute); !p.Holds(proxy.Up, []byte("held")) &&
		time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	p.Seal()
	c.says("lost")
	p.Heal()
	c.hears("held")
	c.hearsNothing()
}

// Close returns although the link is silent, slow, and its server unreachable.
func TestCloseWaitsForNobody(t *testing.T) {
	p := through(t)
	c := dial(t, p)
	c.says("one")
	c.hears("one")
	p.Delay(time.Hour)
	c.says("never")
	p.Hold()
	done := make(chan struct{})
	go func() { p.Close(); close(done) }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("Close hangs")
	}
	p.Heal() // of a closed one changes nothing
	c.hearsTheEnd()
	if _, err := net.Dial("tcp", p.Addr()); err == nil {
		t.Error("a closed proxy accepts connections")
	}
}

func TestAServerThatIsDownClosesTheConnection(t *testing.T) {
	p, err := proxy.Listen("127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	dial(t, p).hearsTheEnd()
}
