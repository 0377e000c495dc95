package registerstore

// SetRate makes the clock by which s watches run so much faster than the true one.
func SetRate(s *Store, rate float64) { s.silence = overTTL / rate }

// SetOver sets by how much the silence is longer than the ttl, for a test of the tests.
func SetOver(s *Store, over float64) { s.silence *= over / overTTL }
