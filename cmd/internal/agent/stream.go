package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/health"
)

// line is one event of a campaign, or of a lock that is bound to its connection.
type line struct {
	Event    string        `json:"event"` // waiting, elected (a lock: acquired), renewed, stopping, ended
	Name     string        `json:"name"`
	ID       string        `json:"id"`
	Token    primacy.Token `json:"token,omitzero"`
	Position int           `json:"position,omitempty"` // in the line, 1 is next; 0: not known yet
	Leader   string        `json:"leader,omitempty"`
	TTLMS    int64         `json:"ttl_ms,omitempty"`
	WaitedMS *int64        `json:"waited_ms,omitempty"`
	*health.Lease
	Reason  primacy.Reason  `json:"reason,omitempty"`
	By      string          `json:"by,omitempty"`
	Text    string          `json:"text,omitempty"`
	Problem *health.Problem `json:"problem,omitempty"`
}

const (
	writeLimit = 5 * time.Second // for a client that does not read
	beatEvery  = 5 * time.Second // something is sent at least so often: a peer that has gone is noticed by that
)

// stream writes events as lines of JSON, or as server-sent events where the client asks for them.
type stream struct {
	w   http.ResponseWriter
	c   *http.ResponseController
	sse bool
	err error // of the first write that failed
}

func newStream(w http.ResponseWriter, r *http.Request) *stream {
	s := &stream{w: w, c: http.NewResponseController(w), sse: wantsSSE(r)}
	h := w.Header()
	h.Set("Content-Type", "application/x-ndjson")
	if s.sse {
		h.Set("Content-Type", "text/event-stream")
	}
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // nginx holds lines back otherwise
	return s
}

func wantsSSE(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "text/event-stream")
}

// send writes one event, which has no number in the stream. It says whether the client may have got
// it; after a failure nothing is sent any more.
func (s *stream) send(event string, v any) bool {
	b, err := encode(s.sse, event, "", v)
	if err != nil {
		s.err = err
		return false
	}
	return s.write(b)
}

// encode returns one event as a stream has it.
func encode(sse bool, event, id string, v any) ([]byte, error) {
	b, err := json.Marshal(v)
	switch {
	case err != nil:
		return nil, err
	case !sse:
		return append(b, '\n'), nil
	case id != "":
		return fmt.Appendf(nil, "id: %s\nevent: %s\ndata: %s\n\n", id, event, b), nil
	}
	return fmt.Appendf(nil, "event: %s\ndata: %s\n\n", event, b), nil
}

func (s *stream) write(text []byte) bool {
	if s.err != nil {
		return false
	}
	_ = s.c.SetWriteDeadline(time.Now().Add(writeLimit))
	if _, s.err = s.w.Write(text); s.err == nil {
		s.err = s.c.Flush()
	}
	return s.err == nil
}

// errGone says that the client has gone: nobody is there to be told.
var errGone = errors.New("the client has gone")

// follow calls send when there may be news, and idle where nothing has come for so long: by that a
// client that has gone is noticed. Send and idle say whether the client may have got it. It returns
// nil when over is closed, errGone when the client has gone or must not get more, errTooLate when
// late comes, and errStopping when the server stops.
func follow(r *http.Request, stopped, over <-chan struct{}, late <-chan time.Time, news <-chan struct{},
	every time.Duration, send, idle func() bool,
) error {
	quiet := time.NewTimer(every)
	defer quiet.Stop()
	for {
		got := true
		select {
		case <-over:
			return nil
		case <-r.Context().Done():
			return errGone
		case <-late:
			return errTooLate
		case <-stopped:
			return errStopping
		case <-news:
			got = send()
		case <-quiet.C:
			got = idle()
		}
		if !got {
			return errGone
		}
		quiet.Reset(every)
	}
}
