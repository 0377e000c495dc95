package etcdwire

import "sync/atomic"

const (
	// defaultOps is etcd's default of --max-txn-ops, which counts the operations of a Txn and of
	// each within it.
	defaultOps = 128
	// keysAtOnce is how many keys are read or moved in one Txn where the server allows it.
	keysAtOnce = 100
)

// OpsLimit is how many operations the cluster allows in a Txn, as far as is known. The zero value
// works.
type OpsLimit struct{ known atomic.Int64 }

// Ops returns how many operations a Txn may have. Where it has other Txns within it, the operations
// of the largest of those count too.
func (o *OpsLimit) Ops() int {
	if n := o.known.Load(); n > 0 {
		return int(n)
	}
	return defaultOps
}

// Keys returns how many keys may be looked at or moved in one Txn, each by a Txn within it with
// two compares.
func (o *OpsLimit) Keys() int { return min(keysAtOnce, max(1, o.Ops()-2)) }

// Refused notes that the server has refused n operations or Txns in one Txn: half as many may do.
func (o *OpsLimit) Refused(n int) {
	for {
		was := o.known.Load()
		less := int64(n/2 + 2)
		if was > 0 && was <= less || o.known.CompareAndSwap(was, less) {
			return
		}
	}
}

// InChunks calls do for 0 to n-1, as many at once as Keys says, and for half as many where etcd
// says that these are too many for one Txn. It ends where do fails or says not to go on, and
// returns how many are done.
func (o *OpsLimit) InChunks(n int, do func(from, to int) (goOn bool, err error)) (done int, err error) {
	for done < n {
		to := min(n, done+o.Keys())
		goOn, err := do(done, to)
		if to-done > 1 && TooMany(err) {
			o.Refused(to - done)
			continue
		}
		if err != nil || !goOn {
			return done, err
		}
		done = to
	}
	return done, nil
}
