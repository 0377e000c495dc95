//go:build linux

package pgtorture

import (
	"errors"
	"slices"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
)

// cuts are the faults of the network.
func (c *cluster) cuts() []fault {
	if c.network == nil {
		return []fault{{"primary cut from etcd", func(r *round) (string, error) {
			for _, l := range r.primary.links {
				l.Hold()
			}
			r.untilTaken()
			return r.primary.name, nil
		}}}
	}
	cut := func(name string, do func(r *round, i, j int) error) fault {
		return fault{name, func(r *round) (string, error) { return r.cut(r.primary, r.standbys, do, r.untilTaken) }}
	}
	both := func(do func(i, j int) error) func(*round, int, int) error {
		return func(_ *round, i, j int) error { return errors.Join(do(i, j), do(j, i)) }
	}
	pg := c.machines[0].port
	nothingBut := func(i, j int) error { return c.network.CutAllBut(i, j, pg) }
	servers := func(i, j int) error { return c.network.CutPort(i, j, pg) }
	return []fault{
		cut("primary cut from etcd", both(nothingBut)),
		{"primary cut from the standbys", func(r *round) (string, error) {
			var told error
			detail, err := r.cut(r.primary, r.standbys, both(servers), func() {
				told = r.tells("commits wait for standbys")
				r.untilTaken()
			})
			return detail, errors.Join(err, told)
		}},
		cut("primary cut from both", both(c.network.CutOneWay)),
		cut("nothing leaves the primary", func(_ *round, i, j int) error { return c.network.CutOneWay(i, j) }),
		cut("nothing arrives at the primary", func(_ *round, i, j int) error { return c.network.CutOneWay(j, i) }),
		{"primary cut from both for a moment", func(r *round) (string, error) {
			return r.cut(r.primary, r.standbys, both(c.network.CutOneWay), r.aWhile)
		}},
		{"standby cut off", func(r *round) (string, error) {
			m := r.standby()
			return r.cut(m, r.without(m), both(c.network.CutOneWay), r.aWhile)
		}},
		{"primary cut from one standby", func(r *round) (string, error) {
			return r.cut(r.primary, []*machine{r.standby()}, both(servers), r.aWhile)
		}},
		{"primary cut from one machine", func(r *round) (string, error) {
			return r.cut(r.primary, []*machine{r.standby()}, both(c.network.CutOneWay), r.aWhile)
		}},
	}
}

// cut separates a machine from others for a while.
func (r *round) cut(m *machine, from []*machine, do func(r *round, i, j int) error,
	meanwhile func()) (string, error) {
	detail := m.name + " from"
	for _, x := range from {
		detail += " " + x.name
		if err := do(r, slices.Index(r.machines, m), slices.Index(r.machines, x)); err != nil {
			return "", err
		}
	}
	meanwhile()
	r.network.Heal()
	return detail + " for " + (boottime.Now() - r.began).Round(time.Millisecond).String(), nil
}
