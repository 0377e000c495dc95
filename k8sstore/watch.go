package k8sstore

import (
	"context"
	"encoding/json"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"
)

// event is one line of a watch.
type event struct {
	Type   string
	Object json.RawMessage
}

// Watch implements [registerstore.Watcher]. It begins where that version ends, so nothing is lost
// in between. The server forgets soon what changed: where it no longer knows that version, or there
// is none, a list says what there is now, and from where on to watch.
func (a *api) Watch(ctx context.Context, key, known string) (value []byte, next string, err error) {
	v, err := parseVersion(known)
	if err != nil {
		return nil, "", err
	}
	from := v.resource
	for try := 0; try < 2; try++ {
		if from == "" {
			if value, next, from, err = a.now(ctx, key); err != nil || next != known {
				return value, next, err
			}
		}
		value, next, forgotten, err := a.follow(ctx, key, known, from)
		if err != nil || !forgotten {
			return value, next, err
		}
		from = ""
	}
	return nil, known, nil
}

// now returns what a Lease is, and from which version on a watch sees what comes after that.
func (a *api) now(ctx context.Context, key string) (value []byte, version, from string, err error) {
	c := a.leases("list", http.MethodGet, "")
	c.query.Set("fieldSelector", "metadata.name="+a.objectName(key))
	var l struct {
		Metadata metadata
		Items    []object
	}
	if code, err := a.do(ctx, c, &l); err != nil {
		return nil, "", "", err
	} else if code >= 300 { // that would be taken for a Lease that is not there
		return nil, "", "", a.errorf(c, "it failed (%d)", code)
	}
	for _, o := range l.Items {
		if o.Metadata.Name == a.objectName(key) {
			return o.value(), o.version(), l.Metadata.ResourceVersion, nil
		}
	}
	return nil, "", l.Metadata.ResourceVersion, nil
}

// follow watches from a version on. Forgotten says that the server does not know it any more.
func (a *api) follow(ctx context.Context, key, known, from string) (
	value []byte, next string, forgotten bool, err error,
) {
	c := a.leases("watch", http.MethodGet, "")
	name := a.objectName(key)
	c.query.Set("watch", "1")
	c.query.Set("fieldSelector", "metadata.name="+name)
	c.query.Set("resourceVersion", from)
	c.query.Set("timeoutSeconds", strconv.Itoa(seconds(ctx)))
	resp, err := a.send(ctx, a.watches, c)
	if err != nil {
		return nil, "", false, err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusGone {
		return nil, "", true, nil
	}
	for events := json.NewDecoder(resp.Body); ; {
		var e event
		if err := events.Decode(&e); err != nil {
			return nil, known, false, ctx.Err() // the server ended it: early, with nothing new
		}
		var o object
		switch e.Type {
		case "ERROR":
			var st status
			if err := json.Unmarshal(e.Object, &st); err == nil && st.Code == http.StatusGone {
				return nil, "", true, nil
			}
			return nil, "", false, a.errorf(c, "%s", st.Message)
		case "DELETED":
			if known != "" {
				return nil, "", false, nil
			}
		case "ADDED", "MODIFIED":
			if err := json.Unmarshal(e.Object, &o); err != nil || a.check(call{name: name}, o) != nil {
				return nil, "", false, a.errorf(c, "an event is about no Lease of that name")
			}
			if o.version() != known {
				return o.value(), o.version(), false, nil
			}
		}
	}
}

// seconds is after how long the server ends a watch by itself, if this process does not.
func seconds(ctx context.Context) int {
	end, ok := ctx.Deadline()
	if !ok {
		return 240 + rand.IntN(61) // so that not all begin anew at once
	}
	return int(min(max(1, math.Ceil(time.Until(end).Seconds())+1), 300))
}
