package core

import "slices"

// Identity is one life of a member's data directory. The incarnation is a random text that is
// replaced before each initdb, clone and rewind. So a member that has lost its memory is not taken
// for the voter of the same name.
type Identity struct {
	Name        string `json:"name"`
	Incarnation string `json:"incarnation"`
}

// String is the name under which the member's walreceiver connects (application_name). It holds the
// incarnation, so that what a primary hears of the one cannot be counted for the other.
func (i Identity) String() string { return i.Name + "@" + i.Incarnation }

// Durability is what an acknowledged commit promises.
type Durability string

const (
	// Quorum: k voters have flushed it, Settings.Acks or all that are left if fewer. The last voter
	// is never dropped: without it commits wait.
	Quorum Durability = "quorum"
	// Available is Quorum, but a primary that has had no standby for a while goes on alone.
	// Then nobody else can be promoted.
	Available Durability = "available"
	// Async: no standby need have it.
	Async Durability = "async"
)

// Fork is where a timeline began.
type Fork struct {
	Timeline Timeline `json:"timeline"`
	From     LSN      `json:"from"`
}

// Promoted is one promotion, for people.
type Promoted struct {
	Token    uint64   `json:"token,string"`
	Member   string   `json:"member"`
	Timeline Timeline `json:"timeline"`
	From     LSN      `json:"from"`   // where its WAL ended before
	Ground   string   `json:"ground"` // why it could be promoted
}

// Record is what the members of a cluster must agree on. It stands under one key without a lease.
// Only the leader of a living term writes it, by compare-and-swap on its version and on the term's
// claim.
type Record struct {
	Seq        uint64     `json:"seq,string"`   // of this write, from 1
	Token      uint64     `json:"token,string"` // of the term whose survey chose Primary
	SystemID   string     `json:"system_id"`    // of the database system, as initdb made it
	Primary    Identity   `json:"primary"`
	Timeline   Timeline   `json:"timeline"` // that Primary was or is to be promoted to
	From       LSN        `json:"from"`     // where Primary's WAL ended before that promotion
	Granted    Timeline   `json:"granted"`  // the largest timeline number ever given out
	Voters     []Identity `json:"voters"`   // whose answers a survey may count, beside Primary's
	Acks       int        `json:"acks"`     // k: how many standbys must have flushed a commit
	Needed     int        `json:"needed"`   // q: how many voters must have answered before a promotion
	Durability Durability `json:"durability"`
	Lineage    []Fork     `json:"lineage"`           // of Timeline and those before it, oldest first
	Stopped    LSN        `json:"stopped,omitempty"` // where Primary's WAL ended at a clean shutdown; 0: there was none
	Paused     *Pause     `json:"paused,omitempty"`
	History    []Promoted `json:"history,omitempty"` // the last ones, oldest first
	Lost       *Lost      `json:"lost,omitempty"`    // then nothing else counts
	Lives      Lives      `json:"lives,omitempty"`
	Born       Timeline   `json:"born,omitempty"` // the first timeline of this life; 0: of a former version
	// Former is what the first primary of this life had noted of the one before. It is empty in a
	// life that follows none.
	Former Noted `json:"former,omitzero"`
}

// maxLineage is how many forks a record keeps. A member that is further behind is rewound.
const maxLineage = 64

// maxHistory is how many promotions a record keeps.
const maxHistory = 32

func (r Record) votes(i Identity) bool { return slices.Contains(r.Voters, i) }

// onlyPrimary says that no answers of voters are enough: nobody but Primary can be promoted, which
// alone may have all acknowledged commits.
func (r Record) onlyPrimary() bool { return r.Needed > len(r.Voters) }

// byHand says whether a timeline was never given out: somebody promoted a server past its agent.
// PostgreSQL then takes the number after the server's own. As numbers are given out by twos, that
// one is never given to anybody else: two timelines of one number would look like one.
func (r Record) byHand(t Timeline) bool { return t > r.Granted || (r.Granted-t)%2 == 1 }

// next returns a copy that shares no slice with r, numbered as the next write.
func (r Record) next() Record {
	r.Seq++
	r.Voters = slices.Clone(r.Voters)
	r.Lineage = slices.Clone(r.Lineage)
	r.History = slices.Clone(r.History)
	return r
}

// promoted notes the promotion that the record is about.
func (r Record) promoted(ground string) Record {
	r.History = append(r.History, Promoted{r.Token, r.Primary.Name, r.Timeline, r.From, ground})
	r.History = r.History[max(0, len(r.History)-maxHistory):]
	return r
}

// Promotion returns the record that makes w the primary under the term with this token. w comes
// from [Survey.Judge]. Needed does not fall: w may be the only one that has an acknowledged commit,
// until [Voters.Next] has found that enough voters have all of them.
func (r Record) Promotion(token uint64, w Answer) Record {
	n := r.next()
	if w.Name != r.Primary.Name {
		n.Paused = nil
	}
	n.Token, n.Primary, n.From, n.Stopped = token, w.Identity, w.LSN, 0
	n.Voters = slices.DeleteFunc(n.Voters, func(v Identity) bool { return v.Name == w.Name })
	n.Acks = max(1, min(r.Acks, len(n.Voters)))
	n.Needed = max(r.Needed, len(n.Voters)-n.Acks+1)
	n.Granted += 2 // see byHand
	n.Timeline = n.Granted
	// w was never on a timeline above its own, though the record may have given it out: to a
	// primary that was not promoted, or too late.
	n.Lineage = slices.DeleteFunc(n.Lineage, func(f Fork) bool { return f.Timeline > w.Timeline })
	n.Lineage = append(n.Lineage, Fork{n.Timeline, w.LSN})
	n.Lineage = n.Lineage[max(0, len(n.Lineage)-maxLineage):]
	return n
}
