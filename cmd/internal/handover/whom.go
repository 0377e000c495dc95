package handover

import (
	"fmt"
	"slices"
	"strings"

	"github.com/primacy-go/primacy"
)

// Whom is the candidates that an operator means by one word: the one with that ID, and those on the
// host of that name.
type Whom struct {
	id   string
	host string // as the IDs have it; "" if the word is no host of theirs
}

// Only returns the candidates of one ID.
func Only(id string) Whom { return Whom{id: id} }

// Find returns whom a word means among all that stand in states. The error says that the word is
// the short name of several hosts: which one is meant is not for us to guess.
func Find(word string, states []primacy.State) (Whom, error) {
	var hosts []string
	for _, id := range ids(states) {
		host := HostOf(id)
		switch {
		case strings.EqualFold(host, word):
			return Whom{word, host}, nil
		case host != "" && sameMachine(host, word) && !slices.Contains(hosts, host):
			hosts = append(hosts, host)
		}
	}
	switch len(hosts) {
	case 0:
		return Whom{id: word}, nil
	case 1:
		return Whom{word, hosts[0]}, nil
	}
	return Whom{}, fmt.Errorf("%s may be any of the hosts %s: give the whole name", word, strings.Join(hosts, ", "))
}

// Means says whether a candidate of that ID is meant.
func (w Whom) Means(id string) bool {
	return id != "" && (id == w.id || w.host != "" && HostOf(id) == w.host)
}

// In returns the IDs in states that are meant, each once.
func (w Whom) In(states []primacy.State) []string {
	return slices.DeleteFunc(ids(states), func(id string) bool { return !w.Means(id) })
}

// leads says whether one of them leads an election. A lock that one shares is none.
func (w Whom) leads(st primacy.State) bool {
	return st.Leader != nil && w.Means(st.Leader.ID) && st.Leader.Slots == 0
}

// HostOf returns the host in an ID that a session made up, HOST-PID-XXXX; "" for any other ID. It
// reads from the end: a host may have dashes and digits in its name, and be the beginning of
// another's.
func HostOf(id string) string {
	rest, tail, ok := cutLast(id)
	if !ok || len(tail) != 4 || strings.Trim(tail, "0123456789abcdef") != "" {
		return ""
	}
	host, pid, ok := cutLast(rest)
	if !ok || pid == "" || strings.Trim(pid, "0123456789") != "" {
		return ""
	}
	return host
}

func cutLast(s string) (before, after string, ok bool) {
	i := strings.LastIndexByte(s, '-')
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

// sameMachine says whether one of two host names is the other one without its domain.
func sameMachine(a, b string) bool {
	if len(a) < len(b) {
		a, b = b, a
	}
	short, _, domain := strings.Cut(a, ".")
	return domain && strings.EqualFold(short, b)
}

// ids returns the IDs in states, each once, in the order in which they stand there.
func ids(states []primacy.State) (all []string) {
	seen := map[string]bool{"": true}
	add := func(id string) {
		if !seen[id] {
			seen[id] = true
			all = append(all, id)
		}
	}
	for _, st := range states {
		if st.Leader != nil {
			add(st.Leader.ID)
		}
		for _, w := range st.Waiting {
			add(w.ID)
		}
	}
	return all
}
