package shown

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/primacy-go/primacy/shards"
)

// MemberState says in words how a member of a group of shards is.
func MemberState(m shards.Member) string {
	switch {
	case m.Away:
		return "away: its shards wait for it"
	case m.Draining:
		return "leaves"
	case !m.Ready:
		return "unhealthy"
	}
	return "ready"
}

// MoveState says in words how far a move has come.
func MoveState(m shards.Move) string {
	if m.Asked {
		return "the owner was asked"
	}
	return "the new owner warms up"
}

// Ranges writes numbers, which ascend, as "3, 7-9".
func Ranges(all []int) string {
	var parts []string
	for i := 0; i < len(all); {
		j := i
		for j+1 < len(all) && all[j+1] == all[j]+1 {
			j++
		}
		switch j - i {
		case 0:
			parts = append(parts, strconv.Itoa(all[i]))
		case 1:
			parts = append(parts, strconv.Itoa(all[i]), strconv.Itoa(all[j]))
		default:
			parts = append(parts, fmt.Sprintf("%d-%d", all[i], all[j]))
		}
		i = j + 1
	}
	return strings.Join(parts, ", ")
}
