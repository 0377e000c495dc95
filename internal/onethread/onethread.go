// Package onethread starts processes from one thread. PDEATHSIG, by which children end with whoever
// started them even if that is killed, means the thread that started them: in Go any thread may
// start a child, and end long before the process does.
package onethread

import (
	"runtime"
	"sync"
)

// Start returns what runs functions on a thread of their own, one at a time, and what ends that
// thread.
func Start() (do func(func()), stop func()) {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return func(f func()) {
		done := make(chan struct{})
		work <- func() { defer close(done); f() }
		<-done
	}, sync.OnceFunc(func() { close(work) })
}

var forever = sync.OnceValue(func() func(func()) {
	do, _ := Start()
	return do
})

// Do runs f on a thread that lives as long as this process.
func Do(f func()) { forever()(f) }
