package redlockstore

import (
	"errors"
	"fmt"
	"strings"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/boottime"
)

// count counts answers for several claims.
type count struct {
	s        *Store
	answered int
	counting int           // servers that answered and count
	own, not []int         // of each claim: servers where it stands and that count; where it does not
	free     map[int][]int // of each server: claims whose key is free there
	failed   int           // servers that have not answered as they should
	errs     []error
}

func newCount(s *Store, claims int) *count {
	return &count{s: s, own: make([]int, claims), not: make([]int, claims), free: map[int][]int{}}
}

// add takes an answer in that has, after skip values, the state of each claim.
func (n *count) add(a values, skip int) {
	n.answered++
	if a.err == nil && len(a.got) < skip+len(n.own) {
		a.err = errors.New("an answer that is too short")
	}
	if a.err != nil {
		n.failed++
		n.errs = append(n.errs, a.err)
		return
	}
	left := n.s.servers[a.at].guarded(boottime.Now())
	if left <= 0 {
		n.counting++
	}
	for i := range n.own {
		switch is, _ := a.got[skip+i].(string); {
		case is == "own" && left <= 0:
			n.own[i]++
		case is == "own": // on a server that does not count yet
		default:
			n.not[i]++
			if is == "none" {
				n.free[a.at] = append(n.free[a.at], i)
			}
		}
	}
}

// enough says whether every claim stands on a majority.
func (n *count) enough() bool {
	for _, own := range n.own {
		if own < n.s.quorum {
			return false
		}
	}
	return n.counting >= n.s.quorum
}

// error says why there is no majority. It is final only where the servers refuse.
func (n *count) error(why error) error {
	var texts []string
	refused := 0
	for _, err := range n.errs {
		texts = append(texts, err.Error())
		if errors.Is(err, driver.ErrRefused) {
			refused++
		}
	}
	if silent := len(n.s.servers) - n.answered; silent > 0 {
		texts = append(texts, fmt.Sprintf("%d have not answered", silent))
	}
	if refused > len(n.s.servers)-n.s.quorum {
		return fmt.Errorf("no majority of %d servers: %s: %w", len(n.s.servers), strings.Join(texts, "; "), driver.ErrRefused)
	}
	if err := n.s.trusted(); err != nil {
		texts = append(texts, err.Error())
	}
	if len(texts) == 0 {
		texts = append(texts, "keys are missing")
	}
	err := fmt.Errorf("no majority of %d servers: %s", len(n.s.servers), strings.Join(texts, "; "))
	if why != nil {
		return fmt.Errorf("%w (%w)", err, why)
	}
	return err
}
