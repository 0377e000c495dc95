package drivertest

import "github.com/primacy-go/primacy/driver"

// A wrapper has an optional port exactly where what it wraps has it, for the library asks by a type assertion.

// storePorts are the optional ports of a store, nil where it has them not.
type storePorts struct {
	lister  driver.Lister
	asker   driver.Asker
	revoker driver.Revoker
}

// allStorePorts is a wrapper with every optional port.
type allStorePorts interface {
	driver.Lister
	driver.Asker
	driver.Revoker
}

// faultyControls is what a [FaultyStore] has beside the port; nil for other wrappers.
type faultyControls interface {
	Set(Faults)
	Hang(bool)
	Deaf(bool)
	Settle()
}

// storeWith returns base with those of the optional ports that has says.
func storeWith(base driver.Store, has storePorts, all allStorePorts) driver.Store {
	control, _ := base.(faultyControls)
	type core struct {
		driver.Store
		faultyControls
	}
	in := core{base, control}
	type (
		lister  = driver.Lister
		asker   = driver.Asker
		revoker = driver.Revoker
	)
	switch l, a, r := has.lister != nil, has.asker != nil, has.revoker != nil; {
	case l && a && r:
		return struct {
			core
			allStorePorts
		}{in, all}
	case l && a:
		return struct {
			core
			lister
			asker
		}{in, all, all}
	case l && r:
		return struct {
			core
			lister
			revoker
		}{in, all, all}
	case a && r:
		return struct {
			core
			asker
			revoker
		}{in, all, all}
	case l:
		return struct {
			core
			lister
		}{in, all}
	case a:
		return struct {
			core
			asker
		}{in, all}
	case r:
		return struct {
			core
			revoker
		}{in, all}
	}
	return in
}

// leasePorts are the optional ports of a lease, nil where it has them not.
type leasePorts struct {
	transferer driver.Transferer
	follower   driver.Follower
	exchanger  driver.Exchanger
}

func leasePortsOf(l driver.Lease) (p leasePorts) {
	p.transferer, _ = l.(driver.Transferer)
	p.follower, _ = l.(driver.Follower)
	p.exchanger, _ = l.(driver.Exchanger)
	return p
}

// allLeasePorts is a wrapper with every optional port.
type allLeasePorts interface {
	driver.Transferer
	driver.Follower
	driver.Exchanger
}

// leaseWith is storeWith for a lease.
func leaseWith(base driver.Lease, has leasePorts, all allLeasePorts) driver.Lease {
	type (
		lease      = driver.Lease
		transferer = driver.Transferer
		follower   = driver.Follower
		exchanger  = driver.Exchanger
	)
	switch t, f, e := has.transferer != nil, has.follower != nil, has.exchanger != nil; {
	case t && f && e:
		return struct {
			lease
			allLeasePorts
		}{base, all}
	case t && f:
		return struct {
			lease
			transferer
			follower
		}{base, all, all}
	case t && e:
		return struct {
			lease
			transferer
			exchanger
		}{base, all, all}
	case f && e:
		return struct {
			lease
			follower
			exchanger
		}{base, all, all}
	case t:
		return struct {
			lease
			transferer
		}{base, all}
	case f:
		return struct {
			lease
			follower
		}{base, all}
	case e:
		return struct {
			lease
			exchanger
		}{base, all}
	}
	return base
}
