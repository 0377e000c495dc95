package etcdstore

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/primacy-go/primacy/driver"
)

// several is how many claims or releases of one call are under way at once: enough to fill the Txns of all lanes.
const several = lanes * opsAllowed

// inParallel calls do for 0 to n-1, several at a time, until all are done or one says stop.
func inParallel(n int, do func(i int) (stop bool)) {
	var next atomic.Int64
	var all sync.WaitGroup
	for range min(n, several) {
		all.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n || do(i) {
					next.Store(int64(n))
					return
				}
			}
		})
	}
	all.Wait()
}

// claimMany enters claims of which none is a Try. Where one fails those that have not begun are left out. Its error is the first whose
// outcome is unknown, so that no final answer hides a claim that may stand.
func (l *lease) claimMany(ctx context.Context, claims []driver.Claim) ([]driver.Place, error) {
	places, errs := make([]driver.Place, len(claims)), make([]error, len(claims))
	names := byName(claims)
	inParallel(len(names), func(i int) (stop bool) {
		for _, at := range names[i] {
			if places[at], errs[at] = l.claim(ctx, claims[at]); errs[at] != nil {
				return true
			}
		}
		return false
	})
	var first error
	for _, err := range errs {
		if err != nil && (first == nil || final(first) && !final(err)) {
			first = err
		}
	}
	if first != nil {
		return nil, first
	}
	return places, nil
}

// byName returns the indices of claims on the same name together, in order.
func byName(claims []driver.Claim) (names [][]int) {
	at := make(map[string]int, len(claims))
	for i, c := range claims {
		n, ok := at[c.Name]
		if !ok {
			n = len(names)
			at[c.Name] = n
			names = append(names, nil)
		}
		names[n] = append(names[n], i)
	}
	return names
}

// Release implements [driver.Lease]. Where one place fails, the others are still tried.
func (l *lease) Release(ctx context.Context, places ...driver.Place) error {
	if len(places) == 1 {
		return l.release(ctx, places[0])
	}
	errs := make([]error, len(places))
	inParallel(len(places), func(i int) (stop bool) {
		errs[i] = l.release(ctx, places[i])
		return false
	})
	return errors.Join(errs...)
}
