package etcdstore

// Unverified makes s take etcd's keepalive at its word, as other libraries do: the positive
// control of the verified renewal.
func Unverified(s *Store) { s.unverified = true }

// Escape is how a name is written in keys.
func Escape(name string) string { return escape(name) }

// Hex is how a lease's ID is written.
func Hex(id int64) string { return hex(id) }
