package drivertest

import "github.com/primacy-go/primacy/driver"

// storePorts are the optional ports of a store, nil where it has them not.
type storePorts struct {
	asker   driver.Asker
	journal driver.Journal
}

func storePortsOf(s driver.Store) (p storePorts) {
	p.asker, _ = s.(driver.Asker)
	p.journal, _ = s.(driver.Journal)
	return p
}

// allStorePorts is a wrapper with every optional port.
type allStorePorts interface {
	driver.Asker
	driver.Journal
}

// faultyControls is what a [FaultyStore] has beside the port; nil for other wrappers.
type faultyControls interface {
	Set(Faults)
	Hang(bool)
	Deaf(bool)
	Settle()
}

// wrapped is what every wrapper has.
type wrapped struct {
	driver.Store
	faultyControls
}

// storeWith returns base with those of the optional ports that has says.
func storeWith(base driver.Store, has storePorts, all allStorePorts) driver.Store {
	control, _ := base.(faultyControls)
	in := wrapped{base, control}
	switch {
	case has.asker != nil && has.journal != nil:
		return struct {
			wrapped
			driver.Asker
			driver.Journal
		}{in, all, all}
	case has.asker != nil:
		return struct {
			wrapped
			driver.Asker
		}{in, all}
	case has.journal != nil:
		return struct {
			wrapped
			driver.Journal
		}{in, all}
	}
	return in
}
