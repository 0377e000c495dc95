package core

import (
	"strings"
	"time"
)

// tellAfter is how long something hangs before people are told of it.
const tellAfter = time.Second

// wasTaken begins what people are told of a server that was promoted by hand.
const wasTaken = "its server was promoted by hand: "

// noRoom is what people are told of data that are neither rewound nor removed while the disk is
// full: what is left of them may be all that a failover has.
const noRoom = "must be rewound or copied anew: waits for room on its disk"

// tells returns what a standby says of itself that was told to follow, in place of what it has said
// so far: that is over once it follows. Kept is that its state cannot be written, which is tried
// again all the time, and that a reinit failed: whoever waits for that would take it for done.
func (s *serverRun) tells(o Observation, why string) string {
	for _, do := range []Action{Persist{}, Reinit{}} {
		if strings.HasPrefix(why, NameOf(do)+": ") {
			return why
		}
	}
	switch {
	case o.Server.Follows:
		return ""
	case o.Now-s.notStreamingSince >= tellAfter:
		return "no WAL comes from " + o.Record.Primary.Name + ": the server's log says why (it cannot be reached " +
			"from here, the disk is full, or somebody has set primary_conninfo)"
	}
	return why
}

// tells returns what a primary says of commits that hang.
func (s Server) tells() string {
	if s.Waiting >= tellAfter {
		return "commits wait for standbys to flush them"
	}
	return ""
}
