package drivertest

import (
	"testing"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
)

// TestAWrapperHasThePortsOfItsStore: those and no others, in every combination.
func TestAWrapperHasThePortsOfItsStore(t *testing.T) {
	s := memstore.New(memstore.Options{})
	for mask := range 4 {
		var has storePorts
		if mask&1 != 0 {
			has.asker = s
		}
		if mask&2 != 0 {
			has.journal = s
		}
		f := &faulty{Store: s, net: &network{}}
		for _, wrapper := range []driver.Store{storeWith(stubbornStore{s}, has, stubbornPorts{has}), storeWith(f, has, faultyPorts{has, f.net})} {
			got := storePortsOf(wrapper)
			if (got.asker != nil) != (has.asker != nil) || (got.journal != nil) != (has.journal != nil) {
				t.Errorf("ports %02b: the wrapper has %+v", mask, got)
			}
		}
	}
}
