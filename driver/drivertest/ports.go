package drivertest

import "github.com/primacy-go/primacy/driver"

// A wrapper has an optional port exactly where what it wraps has it, for the library asks by a type
// assertion.

// leasePorts are the optional ports of a lease, nil where it has them not.
type leasePorts struct {
	transferer driver.Transferer
	exchanger  driver.Exchanger
}

func leasePortsOf(l driver.Lease) (p leasePorts) {
	p.transferer, _ = l.(driver.Transferer)
	p.exchanger, _ = l.(driver.Exchanger)
	return p
}

// allLeasePorts is a wrapper with every optional port.
type allLeasePorts interface {
	driver.Transferer
	driver.Exchanger
}

// leaseWith is storeWith for a lease.
func leaseWith(base driver.Lease, has leasePorts, all allLeasePorts) driver.Lease {
	type (
		lease      = driver.Lease
		transferer = driver.Transferer
		exchanger  = driver.Exchanger
	)
	switch t, e := has.transferer != nil, has.exchanger != nil; {
	case t && e:
		return struct {
			lease
			allLeasePorts
		}{base, all}
	case t:
		return struct {
			lease
			transferer
		}{base, all}
	case e:
		return struct {
			lease
			exchanger
		}{base, all}
	}
	return base
}
