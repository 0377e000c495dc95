package agent

import (
	"sync"
	"time"
)

// waits remembers since when commits are seen to wait for standbys. PostgreSQL does not tell.
type waits struct {
	mu    sync.Mutex
	since map[string]time.Duration // by what [server.Server.Waiting] says; on the boot clock
}

// longest returns how long the longest of those that wait now is known to.
func (w *waits) longest(now time.Duration, waiting []string) (longest time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	since := map[string]time.Duration{}
	for _, id := range waiting {
		first, ok := w.since[id]
		if !ok {
			first = now
		}
		since[id] = first
		longest = max(longest, now-first)
	}
	w.since = since
	return longest
}
