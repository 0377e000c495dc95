package core

// writes is what a member knows of its own writes of the record.
type writes struct {
	last    uint64  // the number of the last that was carried out
	pending *Record // one of unknown outcome
}

// done takes the result of a write.
func (w *writes) done(r Record, d Done) {
	switch {
	case d.Err == nil:
		w.pending, w.last = nil, r.Seq
	case d.Unknown:
		w.pending = &r
	}
	// Refused: this try wrote nothing. It may have been refused because an earlier one of the same,
	// of unknown outcome, had succeeded: that stays pending until the record is read.
}

// again returns a write of unknown outcome that is to be repeated, the same: whichever try
// succeeds, it says this. Writes of a former term find their claim gone.
func (w *writes) again(o Observation) *Record {
	if p := w.pending; p != nil && p.Token == o.Own.Token {
		if o.Record == nil && p.Seq == 1 || o.Record != nil && o.Record.Seq < p.Seq {
			return p
		}
	}
	w.pending = nil
	return nil
}
