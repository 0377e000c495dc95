package main

import (
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/embedded"
)

// inTerms is how many terms of `run` and `lock` are led or being given up here, and those after
// which this process ends by itself.
var inTerms atomic.Int32

// endWithout ends this process when the embedded store is gone for it. It could do nothing any more
// but wait, and if it hosted the store, only its end lets others have it: an etcd that broke keeps
// its files. To end like this is to be killed, which is safe at any time. But a term of `run` or
// `lock` ends first, as it does without a store: with its hooks, its command's status and its
// events.
func endWithout(n *embedded.Node, stderr io.Writer) {
	<-n.Done()
	err := n.Err()
	if err == nil {
		return
	}
	said := make(chan struct{})
	go func() {
		defer close(said)
		fmt.Fprintf(stderr, "primacy: %v\n", err)
	}()
	select {
	case <-said:
	case <-time.After(time.Second): // nobody reads stderr
	}
	for inTerms.Load() > 0 {
		time.Sleep(100 * time.Millisecond)
	}
	os.Exit(exitUnreachable)
}
