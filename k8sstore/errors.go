package k8sstore

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// status is what the server says of a call that it did not carry out.
type status struct {
	Message string
	Reason  string
	Code    int
	Details struct {
		Name, Kind string
		Causes     []struct{ Reason string }
	}
}

// statusOf reads a Status. Of a server that is none, or of a proxy before it, it has the beginning
// of what was said.
func statusOf(resp *http.Response) (st status) {
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if json.Unmarshal(text, &st) != nil || st.Message == "" {
		st.Message = string(text[:min(len(text), 200)])
	}
	st.Message = strings.Join(strings.Fields(st.Message), " ")
	return st
}

// meaningful says whether a verb has a use for that answer: there is no such Lease, or it has
// another version, or a list or watch begins too long ago.
func meaningful(c call, code int, st status) bool {
	switch code {
	case http.StatusNotFound:
		// Of the Lease itself: that its namespace or the whole API is not there must not be taken
		// for an empty line.
		return c.name != "" && st.Details.Kind == "leases" && st.Details.Name == c.name
	case http.StatusConflict:
		return c.verb == "create" && st.Reason == "AlreadyExists" || c.verb == "update" || c.verb == "delete"
	case http.StatusGone:
		return c.verb == "watch" || c.verb == "list"
	}
	return false
}

// patience is how long something is refused that was allowed before, until that is final: a server
// that has just started does not know all roles yet, and a token may be replaced late.
const patience = time.Minute

// refusal is refuse of an answer that was not read yet.
func (a *api) refusal(c call, resp *http.Response) error {
	return a.refuse(c, resp.StatusCode, statusOf(resp))
}

// refuse returns the error for an answer: what is wrong, where, and what to do.
func (a *api) refuse(c call, code int, st status) error {
	say := func(what, advice string) error { return a.errorf(c, "%s (%d): %s%s", what, code, st.Message, advice) }
	switch {
	case code == http.StatusUnauthorized:
		// Not final for a process that was known before: its token rotates.
		return a.firstly(say("it does not know who asks", "; is the token still good?"))
	case code == http.StatusForbidden && st.terminating():
		return final(say("the namespace is being deleted", ""))
	case code == http.StatusForbidden:
		err := say("it may not", "; deploy/kubernetes/base/role.yaml is the role it needs")
		if a.wasAllowed(c.verb) {
			return err
		}
		return final(err)
	case code == http.StatusNotFound && st.Details.Kind == "namespaces":
		return final(say("there is no such namespace", "; kubectl create namespace "+a.namespace))
	case code == http.StatusNotFound:
		return final(say("it has no Leases", "; is that the address of a Kubernetes API server?"))
	case code == http.StatusRequestEntityTooLarge:
		return final(say("too large", ""))
	case code == http.StatusBadRequest, code == http.StatusUnprocessableEntity, code == http.StatusMethodNotAllowed:
		return final(say("it does not take that", ""))
	case code == http.StatusTooManyRequests:
		return say("it has too much to do", "")
	case code >= 300 && code < 400:
		return say("it sends us elsewhere", "; use the address of the API server itself")
	}
	return say("it failed", "")
}

// terminating says whether a call was refused because the namespace is on its way out.
func (st status) terminating() bool {
	for _, c := range st.Details.Causes {
		if c.Reason == "NamespaceTerminating" {
			return true
		}
	}
	return false
}

// final says that asking again does not help.
func final(err error) error { return fmt.Errorf("%w: %w", err, driver.ErrRefused) }

// firstly is err, which is final where the server has never known who asks.
func (a *api) firstly(err error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.known {
		return err
	}
	return final(err)
}

// wasAllowed says whether a verb that is refused now was allowed before, and not long ago.
func (a *api) wasAllowed(verb string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	since, noted := a.denied[verb]
	if !noted {
		since = time.Now()
		a.denied[verb] = since
	}
	return a.allowed[verb] && time.Since(since) < patience
}
