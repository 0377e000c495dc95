package k8sstore

import "github.com/primacy-go/primacy/registerstore"

// Register is what the store is made of.
type Register interface {
	registerstore.Register
	registerstore.Watcher
}

func (s *Store) Register() Register { return s.api }

var InClusterAt = inCluster
