package etcdtest

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
)

// Network is a machine of its own for each member (a network namespace), joined by a router in
// another one. The test reaches every member whatever is cut between them.
type Network struct {
	tb     testing.TB
	names  []string // of the members' namespaces
	router string
	subnet string // the first three numbers of all addresses
}

var networks atomic.Int32

// NewNetwork makes n machines. It needs Linux, root and ip(8): without them the test is skipped,
// but where the environment has CI=true it fails, or nobody would notice that it never runs.
func NewNetwork(tb testing.TB, n int) *Network {
	tb.Helper()
	nw, err := TryNetwork(tb, n)
	if err != nil {
		tb.Skipf("needs network namespaces (Linux, root, ip(8)): %v", err)
	}
	return nw
}

// TryNetwork is NewNetwork for a test that can do without: where there are no namespaces it
// returns why.
func TryNetwork(tb testing.TB, n int) (*Network, error) {
	tb.Helper()
	// Both parts differ between test processes and between tests, which may run beside each other.
	pid, seq := os.Getpid(), int(networks.Add(1))
	id := fmt.Sprintf("pt%d-%d", pid, seq)
	sweep()
	nw := &Network{tb: tb, router: id + "r", subnet: fmt.Sprintf("10.%d.%d", 100+pid%100, (pid/100+seq*7)%250)}
	if err := nw.up(id, n); err != nil {
		nw.down()
		if os.Getenv("CI") == "true" {
			tb.Fatalf("etcdtest: network namespaces: %v", err)
		}
		return nil, err
	}
	tb.Cleanup(nw.down)
	return nw, nil
}

// sweep deletes the namespaces of test processes that were killed before they could.
func sweep() {
	out, err := exec.Command("ip", "netns", "list").Output()
	if err != nil {
		return
	}
	for _, ns := range strings.Fields(string(out)) {
		pid, _, ok := strings.Cut(strings.TrimPrefix(ns, "pt"), "-")
		if !ok || !strings.HasPrefix(ns, "pt") || len(pid) == 0 || strings.Trim(pid, "0123456789") != "" {
			continue
		}
		if _, err := os.Stat("/proc/" + pid); os.IsNotExist(err) {
			_ = ip("netns", "del", ns)
		}
	}
}

// up makes the namespaces. Forwarding is switched on in the router's only, and the rules live
// there: the machine is as it was as soon as the namespaces are deleted.
func (nw *Network) up(id string, n int) error {
	if err := ip("netns", "add", nw.router); err != nil {
		return err
	}
	if err := ip("netns", "exec", nw.router, "sysctl", "-qw", "net.ipv4.ip_forward=1"); err != nil {
		return err
	}
	if err := ip("-n", nw.router, "link", "set", "lo", "up"); err != nil {
		return err
	}
	for i := range n {
		ns := fmt.Sprintf("%sm%d", id, i)
		nw.names = append(nw.names, ns)
		if err := ip("netns", "add", ns); err != nil {
			return err
		}
		dev := fmt.Sprintf("m%d", i)
		cmds := []string{
			fmt.Sprintf("-n %s link add %s type veth peer name eth0 netns %s", nw.router, dev, ns),
			fmt.Sprintf("-n %s addr add %s.%d/30 dev %s", nw.router, nw.subnet, 4*i+1, dev),
			fmt.Sprintf("-n %s link set %s up", nw.router, dev),
			fmt.Sprintf("-n %s addr add %s/30 dev eth0", ns, nw.Host(i)),
			fmt.Sprintf("-n %s link set eth0 up", ns),
			fmt.Sprintf("-n %s link set lo up", ns),
			fmt.Sprintf("-n %s route add default via %s.%d", ns, nw.subnet, 4*i+1),
		}
		if err := ips(cmds); err != nil {
			return err
		}
	}
	// The test's own way in. The device's name has 15 characters at most.
	dev := strings.ReplaceAll(id, "-", "x")
	return ips([]string{
		fmt.Sprintf("link add %s type veth peer name host netns %s", dev, nw.router),
		fmt.Sprintf("addr add %s.242/30 dev %s", nw.subnet, dev),
		fmt.Sprintf("link set %s up", dev),
		fmt.Sprintf("-n %s addr add %s.241/30 dev host", nw.router, nw.subnet),
		fmt.Sprintf("-n %s link set host up", nw.router),
		fmt.Sprintf("route add %s.0/24 via %s.241", nw.subnet, nw.subnet),
	})
}

// down deletes the namespaces; devices and routes go with them.
func (nw *Network) down() {
	for _, ns := range append(nw.names, nw.router) {
		_ = ip("netns", "del", ns)
	}
}

// Host returns the address of machine i.
func (nw *Network) Host(i int) string { return fmt.Sprintf("%s.%d", nw.subnet, 4*i+2) }

// Subnet holds the addresses of all machines and of the test.
func (nw *Network) Subnet() string { return nw.subnet + ".0/24" }

// Options returns o for a cluster with one member on each machine.
func (nw *Network) Options(o Options) Options {
	for i := range nw.names {
		o.Hosts = append(o.Hosts, nw.Host(i))
	}
	o.Wrap = nw.On
	return o
}

// On returns the command that runs cmd on machine i. It is the same process.
func (nw *Network) On(i int, cmd []string) []string {
	return append([]string{"ip", "netns", "exec", nw.names[i]}, cmd...)
}

// Cut lets nothing pass between machine i and the other machines, silently, until Heal.
func (nw *Network) Cut(i int) {
	nw.tb.Helper()
	for j := range nw.names {
		if j == i {
			continue
		}
		for _, pair := range [][2]int{{i, j}, {j, i}} {
			if err := nw.CutOneWay(pair[0], pair[1]); err != nil {
				nw.tb.Errorf("etcdtest: cut: %v", err)
			}
		}
	}
}

// CutOneWay lets nothing pass from machine i to machine j, silently, until Heal. What j sends
// still arrives at i.
func (nw *Network) CutOneWay(i, j int) error { return nw.blackhole(nw.Host(i), nw.Host(j)) }

// CutClients lets nothing pass between the test's own machine, with all clients, and machine i,
// silently, until Heal.
func (nw *Network) CutClients(i int) error {
	if err := nw.blackhole(nw.subnet+".242", nw.Host(i)); err != nil {
		return err
	}
	return nw.blackhole(nw.Host(i), nw.subnet+".242")
}

// CutPort lets nothing pass from machine i to machine j, silently, until Heal, that goes to the
// TCP port or comes from it.
func (nw *Network) CutPort(i, j int, port string) error {
	return nw.ports("100", i, j, port, "blackhole")
}

// CutAllBut lets nothing pass from machine i to machine j, silently, until Heal, but what goes to
// the TCP port or comes from it.
func (nw *Network) CutAllBut(i, j int, port string) error {
	if err := nw.ports("99", i, j, port, "table", "main"); err != nil {
		return err
	}
	return nw.CutOneWay(i, j)
}

func (nw *Network) ports(pref string, i, j int, port string, action ...string) error {
	for _, end := range []string{"sport", "dport"} {
		rule := []string{"-n", nw.router, "rule", "add", "pref", pref, "from", nw.Host(i), "to", nw.Host(j),
			"ipproto", "tcp", end, port}
		if err := ip(append(rule, action...)...); err != nil {
			return err
		}
	}
	return nil
}

func (nw *Network) blackhole(from, to string) error {
	return ip("-n", nw.router, "rule", "add", "pref", "100", "from", from, "to", to, "blackhole")
}

// Heal joins all machines again.
func (nw *Network) Heal() {
	for _, pref := range []string{"100", "99"} {
		for ip("-n", nw.router, "rule", "del", "pref", pref) == nil {
		}
	}
}

// ips runs several commands of ip(8).
func ips(cmds []string) error {
	for _, c := range cmds {
		if err := ip(strings.Fields(c)...); err != nil {
			return err
		}
	}
	return nil
}

// ip runs ip(8).
func ip(args ...string) error {
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
