package driver

import "context"

// Record is one entry of a journal.
type Record struct {
	Key   string // 1 to 64 bytes, letters, digits and "-.:+_" only: a journal is in the order of its keys, byte by byte
	Value []byte // at most MaxRecord bytes
}

// MaxRecord is how many bytes a record may have.
const MaxRecord = 8192

// Journal is a [Store] that keeps records of what happened, each under the name of a journal. These
// names have nothing to do with those of lines. No decision about leadership rests on a journal,
// and records outlive the lease and the process that wrote them. A store may forget a record 400
// days after it was written, so that names which nobody uses any more do not fill it for ever.
//
// A [Place] can carry a record too: see [Place.Record]. It counts with the others, but only Append
// removes records: who leaves some by places appends to the same journal now and then.
type Journal interface {
	// Append keeps r under name unless there is a record with its key: then it changes nothing and
	// returns that one and false. The keep records with the largest keys are kept at least; of what
	// is beyond them most are removed, now or soon. keep is at least 1. It is safe to repeat after
	// an unknown outcome, but false then says only that the record is there: the caller looks whose
	// it is. [ErrRefused] for a key or value that cannot be kept.
	Append(ctx context.Context, name string, r Record, keep int) (there Record, added bool, err error)

	// Records returns at most limit records of name that are smaller than before, or of all where
	// that is empty, with the largest keys first. It is linearizable where Line is. A journal never
	// used is empty, which is no error.
	Records(ctx context.Context, name, before string, limit int) ([]Record, error)

	// Journals returns the names that begin with prefix and have records, in order.
	Journals(ctx context.Context, prefix string) ([]string, error)
}
