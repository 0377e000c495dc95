package sim

// kubeDoc is the value of a line, and its verbs are those of registerstore/verbs.go: functions from
// one value to the next. A value that was written is not changed any more.
type kubeDoc struct {
	seq     uint64 // counts writes
	token   uint64 // the last one given out
	claims  []kubeClaim
	deposed []uint64 // claim IDs that others removed
}

type kubeClaim struct{ sess, id, token uint64 }

// docOf is the value of a line. One that is not there has an empty one.
func docOf(o *kubeObject) *kubeDoc {
	if o == nil {
		return &kubeDoc{}
	}
	return o.doc
}

func (d *kubeDoc) clone() *kubeDoc {
	c := *d
	c.claims = append([]kubeClaim(nil), d.claims...)
	c.deposed = append([]uint64(nil), d.deposed...)
	return &c
}

// find returns where a place of a lease stands, -1 if it does not.
func (d *kubeDoc) find(sess uint64, p place) int {
	if d == nil {
		return -1
	}
	for i, c := range d.claims {
		if c.sess == sess && c.id == p.id && (p.token == 0 || c.token == p.token) {
			return i
		}
	}
	return -1
}

func (d *kubeDoc) cut(i int) { d.claims = append(d.claims[:i:i], d.claims[i+1:]...) }

func (d *kubeDoc) depose(i int) {
	d.deposed = append(d.deposed, d.claims[i].id)
	d.cut(i)
}

func (d *kubeDoc) isDeposed(id uint64) bool {
	for _, x := range d.deposed {
		if x == id {
			return true
		}
	}
	return false
}

// enter enters a claim of h, behind all, unless it stands already. One of the same lease under
// another ID is displaced.
func (d *kubeDoc) enter(h *kubeHandle, id uint64) (changed bool, err error) {
	if h.spent[id] || d.isDeposed(id) {
		return false, errGone
	}
	for i, c := range d.claims {
		if c.sess != h.no {
			continue
		}
		if c.id == id {
			return false, nil
		}
		h.spent[c.id] = true
		d.cut(i)
		break
	}
	d.token++
	d.claims = append(d.claims, kubeClaim{h.no, id, d.token})
	return true, nil
}

// purge removes the claims of leases that have ended.
func (d *kubeDoc) purge(ended []uint64) (changed bool) {
	for i := len(d.claims) - 1; i >= 0; i-- {
		for _, id := range ended {
			if d.claims[i].sess == id {
				d.cut(i)
				changed = true
				break
			}
		}
	}
	return changed
}
