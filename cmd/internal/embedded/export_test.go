package embedded

import (
	"context"
	"errors"
	"time"
)

var errClosed = errors.New("embedded store: closed")

// Hosting says whether etcd runs in this process now.
func (n *Node) Hosting() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.hosting
}

// Changed blocks until Hosting differs from was, and returns what it is then. Its error is ctx's,
// or says why the node came to an end by itself; after Close it is errClosed.
func (n *Node) Changed(ctx context.Context, was bool) (bool, error) {
	for {
		ended := false
		select {
		case <-n.ended:
			ended = true
		default:
		}
		n.mu.Lock()
		is, failed := n.hosting, n.failed
		n.mu.Unlock()
		switch {
		case failed != nil:
			return is, failed
		case is != was:
			return is, nil
		case ended:
			return false, errClosed
		case ctx.Err() != nil:
			return is, ctx.Err()
		}
		time.Sleep(time.Millisecond)
	}
}
