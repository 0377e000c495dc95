package redisstore

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// In a cluster all keys of a store are in one slot, so on one server at a time: the master that has
// the slot.
//
// While a slot is moved by hand, key by key, its keys are on two servers. A script would find those
// on its own server and take the others for absent, or fail half-way. So each script also names a
// key that never exists: as long as the slot is on its way, Redis refuses a call of whose keys it
// has some and not others (ASK at the old server, TRYAGAIN at the new one), before the script
// begins. Then nothing is done, and nothing is lost. When the slot has arrived, its new server goes
// on with another history (guard.go).

// keysOf returns the keys that a script names.
func keysOf(base string, cluster bool) []string {
	keys := []string{base + "server"}
	if cluster {
		keys = append(keys, base+"-")
	}
	return keys
}

// movedAway says whether another server has the slot, or none has it: the script has not begun.
func movedAway(err error) bool {
	return redis.HasErrorPrefix(err, "MOVED ") || redis.HasErrorPrefix(err, "CLUSTERDOWN ")
}

// inCluster finds the master of the slot that key is in.
func inCluster(addrs []string, o redis.Options, key string) *finder {
	slot := slotOf(strings.TrimSuffix(strings.TrimPrefix(key, "{"), "}:server"))
	f := &finder{who: "the cluster", first: addrs, reach: o.Dialer}
	if f.reach == nil {
		f.reach = straight(o.TLSConfig)
	}
	f.ask = func(ctx context.Context, addr string) (where string, others []string, err error) {
		o := o
		o.Addr, o.Dialer = addr, f.reach
		c := redis.NewClient(own(&o, 1))
		defer c.Close()
		all, err := slotsOf(ctx, c)
		if err != nil {
			return "", nil, err
		}
		for _, part := range all {
			for i, n := range part.Nodes {
				at := seenFrom(addr, n.Addr)
				if i == 0 && part.Start <= slot && slot <= part.End {
					where = at
				}
				if !slices.Contains(others, at) {
					others = append(others, at)
				}
			}
		}
		if where == "" {
			return "", nil, fmt.Errorf("no server has the slot %d of %s", slot, strings.TrimSuffix(key, ":server"))
		}
		return where, others, nil
	}
	return f
}

// slotsOf runs CLUSTER SLOTS. go-redis cannot read the answer where nodes tell no address
// (cluster-preferred-endpoint-type unknown-endpoint).
func slotsOf(ctx context.Context, c *redis.Client) (all []redis.ClusterSlot, err error) {
	rows, err := c.Do(ctx, "CLUSTER", "SLOTS").Slice()
	for i := range rows {
		row := reply(rows).list(i)
		part := redis.ClusterSlot{Start: int(row.num(0)), End: int(row.num(1))}
		for j := 2; j < len(row); j++ {
			node := row.list(j)
			part.Nodes = append(part.Nodes, redis.ClusterNode{Addr: net.JoinHostPort(node.str(0), node.str(1))})
		}
		all = append(all, part)
	}
	return all, err
}

// slotOf returns the slot of all keys with that hash tag: its CRC-16/XMODEM, as the specification
// of Redis Cluster says. CLUSTER KEYSLOT would need a right.
func slotOf(tag string) int {
	crc := uint16(0)
	for _, b := range []byte(tag) {
		crc ^= uint16(b) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			if crc <<= 1; carry {
				crc ^= 0x1021
			}
		}
	}
	return int(crc % 16384)
}

// seenFrom returns the address of a node, given as the server at asked told it. A node that knows
// no name of its own, or only one of the loopback, is on the host that was asked.
func seenFrom(asked, node string) string {
	host, port, err := net.SplitHostPort(node)
	home, _, err2 := net.SplitHostPort(asked)
	if err != nil || err2 != nil {
		return node
	}
	ip, own := net.ParseIP(host), net.ParseIP(home)
	far := own == nil && home != "localhost" || own != nil && !own.IsLoopback()
	if host == "" || host == "?" || ip != nil && ip.IsLoopback() && far {
		host = home
	}
	return net.JoinHostPort(host, port)
}
