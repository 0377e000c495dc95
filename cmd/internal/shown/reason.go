package shown

import (
	"errors"

	"github.com/primacy-go/primacy"
)

// Reasons that only the program gives, beside the library's. History never has them.
const (
	Exited      primacy.Reason = "exited"      // run: the command ended by itself
	Stopped     primacy.Reason = "stopped"     // run: a signal asked it to end
	Unreachable primacy.Reason = "unreachable" // run --on-unreachable stop-now: a renewal failed

	Disconnected primacy.Reason = "disconnected" // sidecar: the client closed its connection
	Lost         primacy.Reason = "lost"         // sidecar: the connection to the client was lost
	NotRenewed   primacy.Reason = "not-renewed"  // sidecar: the client did not renew in time
	Shutdown     primacy.Reason = "shutdown"     // sidecar: the server is stopping
	Timeout      primacy.Reason = "timeout"      // sidecar: not won in the time given
)

// told has the reasons in words for people.
var told = map[primacy.Reason]string{
	primacy.Leads:       "leads",
	primacy.Resigned:    "resigned",
	primacy.Transferred: "transferred",
	primacy.Failed:      "failed",
	primacy.Expired:     "lease expired",
	primacy.Deposed:     "deposed: its claim was removed",
	primacy.Closed:      "session closed",
	primacy.Died:        "process died",
	primacy.Unknown:     "lease expired or process died: no end was recorded",

	Exited:      "the command ended",
	Stopped:     "stopped by a signal",
	Unreachable: "a renewal failed",

	Disconnected: "its client closed the connection",
	Lost:         "the connection to its client was lost",
	NotRenewed:   "its client did not renew it in time",
	Shutdown:     "the server that held it for a client is stopping",
	Timeout:      "not acquired in the time given",
}

// Told returns r in words for people; the word itself where a newer program wrote it.
func Told(r primacy.Reason) string {
	if s, ok := told[r]; ok {
		return s
	}
	return string(r)
}

// Ending says why somebody has to stop: the reason, who asked for it, and why in his words. Of a
// term that expired, Text is what kept its lease from being renewed.
type Ending struct {
	Reason   primacy.Reason
	By, Text string
}

// EndingOf returns the ending of a term whose context ended with err.
func EndingOf(err error) Ending {
	e := Ending{Reason: primacy.ReasonOf(err)}
	if e.Reason == "" {
		e.Reason = primacy.Unknown
	}
	if ended := (*primacy.EndedError)(nil); errors.As(err, &ended) {
		e.By, e.Text = ended.By, ended.Reason
	}
	return e
}
