package redisstore

// PlainPushes has the store push as it does on a cluster of Redis 6.2, which knows no channels of a slot.
func (s *Store) PlainPushes() { s.publish = "PUBLISH" }
