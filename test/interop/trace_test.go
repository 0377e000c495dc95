//go:build linux

package interop

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/primacy-go/primacy/internal/boottime"
)

// trace is what happened in a run, to be shown when it failed.
type trace struct {
	mu    sync.Mutex
	lines []string
	names map[clientv3.LeaseID]string // whose lease it is, where that is known
}

func (tr *trace) note(format string, args ...any) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.lines = append(tr.lines, fmt.Sprintf("%d ", boottime.Now())+fmt.Sprintf(format, args...))
}

// owns notes whose lease it is.
func (tr *trace) owns(lease clientv3.LeaseID, who string) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if tr.names == nil {
		tr.names = map[clientv3.LeaseID]string{}
	}
	tr.names[lease] = who
}

func (tr *trace) name(lease clientv3.LeaseID) string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.names[lease]
}

// show logs what happened, the newest at the end.
func (tr *trace) show(w *world) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	w.Logf("what happened (boot clock, ns):\n%s", strings.Join(tr.lines[max(0, len(tr.lines)-6000):], "\n"))
}

// follow notes each change of the line until ctx ends, and fails the test where one stands first
// for too long.
func (w *world) follow(ctx context.Context, tooLong time.Duration) {
	var first claim
	since, told := time.Now(), false
	for ctx.Err() == nil {
		line, owners, err := w.peek(ctx)
		if err != nil {
			return
		}
		if len(line) == 0 || line[0] != first {
			since, told, first = time.Now(), false, claim{}
			if len(line) > 0 {
				first = line[0]
			}
		}
		if age := time.Since(since); len(line) > 0 && age > tooLong && !told {
			told = true
			w.Errorf("%v is first of the line for %v: %q (lease of %q)", first, age.Round(time.Millisecond),
				owners[first.key], w.trace.name(first.lease))
			w.trace.note("STUCK: %v, lease of %q %q", first, owners[first.key], w.trace.name(first.lease))
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// peek reads the line, and who owns the claims of ours in it.
func (w *world) peek(ctx context.Context) ([]claim, map[string]string, error) {
	resp, err := w.client.Get(ctx, "primacy/", clientv3.WithPrefix(),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	if err != nil {
		return nil, nil, err
	}
	var line []claim
	sessions, owners := map[string]string{}, map[string]string{}
	for _, kv := range resp.Kvs {
		key := string(kv.Key)
		if id, ok := strings.CutPrefix(key, "primacy/@session/"); ok {
			var r struct{ Owner string }
			_ = json.Unmarshal(kv.Value, &r)
			sessions[id] = r.Owner
		} else if strings.HasPrefix(key, linePrefix+"/") {
			line = append(line, claim{key, clientv3.LeaseID(kv.Lease), kv.CreateRevision})
		}
	}
	for _, c := range line {
		id, _, _ := strings.Cut(c.key[strings.LastIndexByte(c.key, '/')+1:], ".")
		owners[c.key] = sessions[id]
	}
	return line, owners, nil
}
