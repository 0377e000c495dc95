package agent

import (
	"errors"
	"net/http"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/health"
	"github.com/primacy-go/primacy/driver"
)

// Problems is every kind of problem that the API answers, beside health's own. Their types never
// change; TestProblems holds docs/serve.md to them.
var Problems = []health.Kind{health.NotFound, health.BadMethod, health.Invalid,
	badJSON, unauthorized, peerRefused, crossSite, hostRefused, badMedia, tooLarge,
	held, tooLate, noLeader, notStanding, notHeld, noJob, stale, idInUse, notOffered, refused, unreachable, stopping, tooMany, internal}

var (
	badJSON      = health.Kind{Slug: "bad-json", Status: http.StatusBadRequest, Title: "the body is not the JSON that this path takes"}
	unauthorized = health.Kind{Slug: "unauthorized", Status: http.StatusUnauthorized, Title: "the bearer token is missing or wrong"}
	peerRefused  = health.Kind{Slug: "peer-refused", Status: http.StatusForbidden, Title: "this user may not use the socket"}
	crossSite    = health.Kind{Slug: "cross-site", Status: http.StatusForbidden, Title: "a web page of another site may not do this"}
	hostRefused  = health.Kind{Slug: "host-refused", Status: http.StatusMisdirectedRequest, Title: "this server does not answer to that host name"}
	badMedia     = health.Kind{Slug: "unsupported-media-type", Status: http.StatusUnsupportedMediaType, Title: "the body must be application/json"}
	tooLarge     = health.Kind{Slug: "too-large", Status: http.StatusRequestEntityTooLarge, Title: "the body is too large"}
	held         = health.Kind{Slug: "held", Status: http.StatusConflict, Title: "others hold the lock, or wait for it"}
	tooLate      = health.Kind{Slug: "wait-timeout", Status: http.StatusRequestTimeout, Title: "not acquired in the time given"}
	noLeader     = health.Kind{Slug: "no-leader", Status: http.StatusConflict, Title: "nobody leads"}
	notStanding  = health.Kind{Slug: "not-standing", Status: http.StatusConflict, Title: "that candidate does not stand in the line"}
	notHeld      = health.Kind{Slug: "not-held", Status: http.StatusGone, Title: "nothing is held here under that token"}
	stale        = health.Kind{Slug: "stale-token", Status: http.StatusPreconditionFailed, Title: "a larger token has been seen"}
	noJob        = health.Kind{Slug: "no-such-job", Status: http.StatusNotFound, Title: "no process has ever had a job of that name"}
	idInUse      = health.Kind{Slug: "ttl-differs", Status: http.StatusConflict, Title: "the candidate of that id has another ttl"}
	notOffered   = health.Kind{Slug: "not-offered", Status: http.StatusNotImplemented, Title: "the store cannot do that"}
	refused      = health.Kind{Slug: "store-refused", Status: http.StatusBadGateway, Title: "the store refused, and would again"}
	unreachable  = health.Kind{Slug: "store-unreachable", Status: http.StatusServiceUnavailable, Title: "the store does not answer"}
	stopping     = health.Kind{Slug: "stopping", Status: http.StatusServiceUnavailable, Title: "this server is stopping"}
	tooMany      = health.Kind{Slug: "too-many", Status: http.StatusServiceUnavailable, Title: "too many clients at once"}
	internal     = health.Kind{Slug: "internal", Status: http.StatusInternalServerError, Title: "our own failure"}
)

// kindOf returns the kind of problem that an error of the library is.
func kindOf(err error) health.Kind {
	for _, k := range []struct {
		err  error
		kind health.Kind
	}{
		{primacy.ErrNotStanding, notStanding}, {primacy.ErrNoLeader, noLeader}, {primacy.ErrHeld, held}, {primacy.ErrInvalid, health.Invalid},
		{primacy.ErrRefused, refused}, {primacy.ErrClosed, stopping}, {primacy.ErrUnreachable, unreachable}, {driver.ErrGone, notHeld},
	} {
		if errors.Is(err, k.err) {
			return k.kind
		}
	}
	if ended := (*primacy.EndedError)(nil); errors.As(err, &ended) {
		return notHeld
	}
	return internal
}

// fail answers with an error of the library.
func fail(w http.ResponseWriter, err error) { kindOf(err).Write(w, "%v", err) }
