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

// storeGone is closed when the embedded store is gone for this process for good. Each term ends by
// that.
var storeGone = make(chan struct{})

func lostStore() bool {
	select {
	case <-storeGone:
		return true
	default:
		return false
	}
}

// lastWords is how long a lost store leaves the terms to end, with their commands and hooks. Nobody
// else can host the store meanwhile, if this process did and its etcd broke.
const lastWords = 10 * time.Second

// endWithout ends this process when the embedded store is gone for it. It could do nothing any more
// but wait, and if it hosted the store, only its end lets others have it: an etcd that broke keeps
// its files. To end like this is to be killed, which is safe at any time. A term ends before, with
// its hook, its command's status and its events, if it does so soon.
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
	close(storeGone)
	for until := time.Now().Add(lastWords); inTerms.Load() > 0 && time.Now().Before(until); {
		time.Sleep(20 * time.Millisecond)
	}
	os.Exit(exitUnreachable)
}
