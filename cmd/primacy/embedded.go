package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/embedded"
)

// endWithout ends this process when the embedded store is gone for it. It could do nothing any more
// but wait, and if it hosted the store, only its end lets others have it: an etcd that broke keeps
// its files. To end like this is to be killed, which is safe at any time.
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
	os.Exit(exitUnreachable)
}
