package core

import "fmt"

// Adoption says that a person has given the cluster data that were there before it: another manager
// has kept them, and its server may still run in them. It means something only until there is a
// record.
type Adoption string

// What a person has said of the data, and what has become of it.
const (
	AdoptedPrimary Adoption = "primary"
	AdoptedStandby Adoption = "standby"
	// AdoptionBegun is of a primary: it is about to end the former manager's server.
	AdoptionBegun Adoption = "begun"
)

// adoptedTwice says that the data were adopted as the primary's, and another member was adopted so
// before. Commits may have been acknowledged here: a person must see to them.
func (s State) adoptedTwice(o Observation) string {
	if s.Adopted != AdoptedPrimary || o.Record == nil {
		return ""
	}
	return fmt.Sprintf("it was adopted as the primary, and %s is the cluster's primary already: look which of them "+
		"has "+
		"the data; to give up this one's, end its server, remove its data directory and state.json, and start it",
		o.Record.Primary.Name)
}
