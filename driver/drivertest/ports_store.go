package drivertest

import "github.com/primacy-go/primacy/driver"

// storePorts are the optional ports of a store, nil where it has them not.
type storePorts struct {
	lister  driver.Lister
	asker   driver.Asker
	revoker driver.Revoker
	journal driver.Journal
}

func storePortsOf(s driver.Store) (p storePorts) {
	p.lister, _ = s.(driver.Lister)
	p.asker, _ = s.(driver.Asker)
	p.revoker, _ = s.(driver.Revoker)
	p.journal, _ = s.(driver.Journal)
	return p
}

// allStorePorts is a wrapper with every optional port.
type allStorePorts interface {
	driver.Lister
	driver.Asker
	driver.Revoker
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
	if has.journal != nil {
		return journalWith(in, has, all)
	}
	switch l, a, r := has.lister != nil, has.asker != nil, has.revoker != nil; {
	case l && a && r:
		return struct {
			wrapped
			driver.Lister
			driver.Asker
			driver.Revoker
		}{in, all, all, all}
	case l && a:
		return struct {
			wrapped
			driver.Lister
			driver.Asker
		}{in, all, all}
	case l && r:
		return struct {
			wrapped
			driver.Lister
			driver.Revoker
		}{in, all, all}
	case a && r:
		return struct {
			wrapped
			driver.Asker
			driver.Revoker
		}{in, all, all}
	case l:
		return struct {
			wrapped
			driver.Lister
		}{in, all}
	case a:
		return struct {
			wrapped
			driver.Asker
		}{in, all}
	case r:
		return struct {
			wrapped
			driver.Revoker
		}{in, all}
	}
	return in
}

// journalWith is storeWith for a store that has journals.
func journalWith(in wrapped, has storePorts, all allStorePorts) driver.Store {
	switch l, a, r := has.lister != nil, has.asker != nil, has.revoker != nil; {
	case l && a && r:
		return struct {
			wrapped
			driver.Lister
			driver.Asker
			driver.Revoker
			driver.Journal
		}{in, all, all, all, all}
	case l && a:
		return struct {
			wrapped
			driver.Lister
			driver.Asker
			driver.Journal
		}{in, all, all, all}
	case l && r:
		return struct {
			wrapped
			driver.Lister
			driver.Revoker
			driver.Journal
		}{in, all, all, all}
	case a && r:
		return struct {
			wrapped
			driver.Asker
			driver.Revoker
			driver.Journal
		}{in, all, all, all}
	case l:
		return struct {
			wrapped
			driver.Lister
			driver.Journal
		}{in, all, all}
	case a:
		return struct {
			wrapped
			driver.Asker
			driver.Journal
		}{in, all, all}
	case r:
		return struct {
			wrapped
			driver.Revoker
			driver.Journal
		}{in, all, all}
	}
	return struct {
		wrapped
		driver.Journal
	}{in, all}
}
