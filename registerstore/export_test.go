package registerstore

import "context"

// SetRate makes the clock by which s watches run so much faster than the true one.
func SetRate(s *Store, rate float64) { s.silence = overTTL / rate }

// SetOver sets by how much the silence is longer than the ttl, for a test of the tests.
func SetOver(s *Store, over float64) { s.silence *= over / overTTL }

// StepUntilDone has a step change the line of name, and find nothing left to do when it is called
// again. It returns how often it was called.
func StepUntilDone(ctx context.Context, s *Store, name string) (calls int, err error) {
	_, err = s.step(ctx, name, func(d *document) error {
		if calls++; calls == 1 {
			d.Rev++
		}
		return nil
	})
	return calls, err
}
