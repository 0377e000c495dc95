package agent

import (
	"context"
	"sync"

	"github.com/primacy-go/primacy/cmd/internal/postgres/clone"
	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
)

// contents is what one look at the data directory has found.
type contents struct {
	data               core.DataState
	identity, systemID string
}

// directory looks at the data directory. A disk that hangs keeps no look at the server waiting.
type directory struct {
	disk *clone.Dir
	turn chan struct{} // holds a value while a look is under way
	mu   sync.Mutex
	last contents
}

func newDirectory(disk *clone.Dir) *directory {
	return &directory{disk: disk, turn: make(chan struct{}, 1)}
}

// look returns what is in the directory, by a look that began after the call. answered is false
// where the disk has not answered within lookLimit, or ctx is over: then it is what was seen last.
func (d *directory) look(ctx context.Context) (found contents, answered bool) {
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	select {
	case d.turn <- struct{}{}:
		done := make(chan struct{})
		go func() {
			d.read()
			close(done)
			<-d.turn
		}()
		select {
		case <-done:
			answered = true
		case <-ctx.Done():
		}
	case <-ctx.Done():
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.last, answered
}

func (d *directory) read() {
	data, err := d.disk.Peek()
	identity, systemID := d.disk.Identity()
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		data = d.last.data // a look that fails once must not end a primary
	}
	d.last = contents{data, identity, systemID}
}
