package doctor

import (
	"fmt"

	"github.com/primacy-go/primacy/driver"
)

// Promises says in plain words what a store with these capabilities can promise where that drift
// bound is kept, and what it cannot.
func Promises(c driver.Caps, drift float64) (can, cannot []string) {
	if c.BestEffort == "" {
		can = append(can, fmt.Sprintf("one leader: at any instant at most one process's Check says yes, whatever "+
			"messages and processes do, "+
			"while clock rates differ by less than %g %% of the ttl", 100*drift))
	} else {
		cannot = append(cannot, "one leader at every instant: there may be two after "+c.BestEffort)
	}
	if !c.Linearizable {
		cannot = append(cannot, "that a reader sees the present line: it can show an old one for a moment")
	}
	switch c.Token {
	case driver.TokenDurable:
		can = append(can, "tokens that grow for as long as it keeps its data: a fence holds whatever clocks do")
	case driver.TokenUntilLoss:
		can = append(can, "tokens that grow until it loses writes")
		cannot = append(cannot, "tokens that survive its own restart or failover: a fence may refuse the new "+
			"leader, or let an old one pass")
	default:
		cannot = append(cannot, "fencing tokens: nothing can refuse a late write of an old leader")
	}
	if c.FIFO {
		can = append(can, "first come, first served: one queue for each name; a release wakes one waiter, not all")
	} else {
		cannot = append(cannot, "an order among those who wait: whoever is quickest leads next")
	}
	if c.Push {
		can = append(can, "that observers hear of changes at once")
	} else {
		cannot = append(cannot, "that observers hear of changes at once: they poll")
	}
	if c.MinTTL > 0 {
		cannot = append(cannot, fmt.Sprintf("a successor sooner than about %v after a crash: its shortest lease",
			c.MinTTL))
	}
	cannot = append(cannot, "to recall a write that was under way when its process was paused: only a fence refuses it")
	if name, known := hypervisor("/"); name != "" || !known {
		of := "when this virtual machine"
		if !known {
			of = "if this is a virtual machine and"
		}
		cannot = append(cannot, "anything by clocks "+of+" is paused or restored by a hypervisor that stops its "+
			"clocks: only a fence holds then")
	}
	return can, append(cannot, c.Warnings...)
}
