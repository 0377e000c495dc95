// Package parallel reads many things of a store a few at a time.
package parallel

import "sync"

// Each calls do for 0 to n-1, in that order, eight at the same time. It returns when all have
// returned.
func Each(n int, do func(i int)) {
	var wg sync.WaitGroup
	next := make(chan int)
	for range min(8, n) {
		wg.Go(func() {
			for i := range next {
				do(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}
