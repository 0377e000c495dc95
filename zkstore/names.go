package zkstore

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/primacy-go/primacy/driver"
)

// escape makes a name or key one part of a path: all but letters, digits and "_:+-." is written
// %XX, and so is a dot in front. So no two names collide, none is "." or "..", and none begins with
// the "@" of our own nodes.
func escape(name string) string {
	var b strings.Builder
	for i := range len(name) {
		switch c := name[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9',
			strings.IndexByte("_:+-", c) >= 0, c == '.' && i > 0:
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// unescape undoes escape. False: escape never made that.
func unescape(part string) (string, bool) {
	var b []byte
	for i := 0; i < len(part); i++ {
		if part[i] != '%' {
			b = append(b, part[i])
			continue
		}
		if i+3 > len(part) {
			return "", false
		}
		c, err := hex.DecodeString(part[i+1 : i+3])
		if err != nil {
			return "", false
		}
		b = append(b, c[0])
		i += 2
	}
	return string(b), escape(string(b)) == part
}

// node is a claim's node in a line.
type node struct {
	path  string
	lease string // the session, in hex
	hash  string // of the claim's ID
	slots int
	seat  string
	seq   int64
	czxid int64 // 0: not known
}

const mark = "p1-"

// hashOf stands for a claim's ID, of any letters and length, in the name of its node.
func hashOf(id string) string {
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:16])
}

// nodeName returns the name of a claim's node without its sequence.
func nodeName(lease string, c driver.Claim) string {
	slots := strconv.Itoa(c.Slots)
	if c.Slots == driver.Unlimited {
		slots = "u"
	}
	return mark + lease + "-" + hashOf(c.ID) + "-" + slots + "-" + c.Seat + "-"
}

// parse reads the name of a child of a line. False: it is no claim of ours.
func parse(dir, child string) (n node, ok bool) {
	rest, ok := strings.CutPrefix(child, mark)
	part := strings.SplitN(rest, "-", 5)
	if !ok || len(part) != 5 || len(part[0]) != 16 || len(part[1]) != 32 {
		return node{}, false
	}
	seq, err := strconv.ParseInt(part[4], 10, 64)
	slots, err2 := strconv.Atoi(part[2])
	if part[2] == "u" {
		slots, err2 = driver.Unlimited, nil
	}
	if err != nil || err2 != nil {
		return node{}, false
	}
	return node{path: dir + "/" + child, lease: part[0], hash: part[1], slots: slots, seat: part[3], seq: seq}, true
}

// wrapped says whether sequence numbers do not tell the order: ZooKeeper's counter has 32 bits.
// After 2³¹ children of a node it stays at its end or turns negative.
func wrapped(nodes []node) bool {
	return slices.ContainsFunc(nodes, func(n node) bool { return n.seq < 0 || n.seq >= math.MaxInt32 })
}

// inOrder sorts nodes as they stand in the line. Where they have wrapped, their czxid must be
// known.
func inOrder(nodes []node) {
	byZxid := wrapped(nodes)
	slices.SortFunc(nodes, func(a, b node) int {
		if byZxid {
			return cmp.Compare(a.czxid, b.czxid)
		}
		return cmp.Compare(a.seq, b.seq)
	})
}

// slotsOf returns the slots of nodes.
func slotsOf(nodes []node) []int {
	all := make([]int, len(nodes))
	for i, n := range nodes {
		all[i] = n.slots
	}
	return all
}

// free says whether the node at i holds.
func free(nodes []node, i int) bool { return driver.Free(nodes[i].slots, slotsOf(nodes[:i])...) }

// ahead is how many in front an exclusive claim watches. With two, where nobody holds for long, the
// look when the first goes would come as late as its turn.
const ahead = 3

// lookouts returns those before i that its claim watches; none if it holds. An exclusive claim
// watches the last ones, a reader the last writer in front, one of n slots the n in front: so few
// wake when one leaves.
func lookouts(nodes []node, i int) []node {
	if free(nodes, i) {
		return nil
	}
	if nodes[i].slots == 0 {
		return nodes[max(0, i-ahead):i]
	}
	for j := i - 1; j >= 0; j-- {
		if nodes[j].slots == 0 {
			return nodes[j : j+1]
		}
	}
	return nodes[i-nodes[i].slots : i]
}

// misfit returns another number of slots that a shared claim among nodes has, 0 if none.
func misfit(nodes []node, slots int) int {
	for _, n := range nodes {
		if slots != 0 && n.slots != 0 && n.slots != slots {
			return n.slots
		}
	}
	return 0
}

// about is what is written in the node of a claim before its value, and in that of a lease.
type about struct {
	Owner string `json:"owner"`
	TTL   string `json:"ttl,omitempty"`
	Odd   []byte `json:"owner64,omitempty"` // the owner, where JSON cannot carry it
}

// encode returns the data of a claim's node.
func encode(owner string, value []byte) []byte {
	a := about{Owner: owner}
	if !utf8.ValidString(owner) {
		a = about{Odd: []byte(owner)}
	}
	head, _ := json.Marshal(a)
	return append(append(head, '\n'), value...)
}

// decode undoes encode. What was not written by us is all value.
func decode(data []byte) (owner string, value []byte) {
	head, value, ok := bytes.Cut(data, []byte("\n"))
	var a about
	if !ok || json.Unmarshal(head, &a) != nil {
		return "", data
	}
	if len(a.Odd) > 0 {
		return string(a.Odd), value
	}
	return a.Owner, value
}
