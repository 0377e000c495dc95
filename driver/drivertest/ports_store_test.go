package drivertest

import (
	"testing"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
)

// TestAWrapperHasThePortsOfItsStore: those and no others, in every combination.
func TestAWrapperHasThePortsOfItsStore(t *testing.T) {
	s := memstore.New(memstore.Options{})
	for mask := range 16 {
		var has storePorts
		if mask&1 != 0 {
			has.lister = s
		}
		if mask&2 != 0 {
			has.asker = s
		}
		if mask&4 != 0 {
			has.revoker = s
		}
		if mask&8 != 0 {
			has.journal = s
		}
		f := &faulty{Store: s, net: &network{}}
		for _, wrapper := range []driver.Store{storeWith(stubbornStore{s}, has, stubbornPorts{has}), storeWith(f, has, faultyPorts{has, f.net})} {
			got := storePortsOf(wrapper)
			if (got.lister != nil) != (has.lister != nil) || (got.asker != nil) != (has.asker != nil) || (got.revoker != nil) != (has.revoker != nil) ||
				(got.journal != nil) != (has.journal != nil) {
				t.Errorf("ports %04b: the wrapper has %+v", mask, got)
			}
		}
	}
}
