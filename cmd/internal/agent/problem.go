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
	held, tooLate, noLeader, notStanding, duplicateID, notHeld, noJob, stale, idInUse, slotsDiffer, notOffered, refused,
	unreachable, stopping, tooMany, internal}

var (
	badJSON      = kind("bad-json", http.StatusBadRequest, "the body is not the JSON that this path takes")
	unauthorized = kind("unauthorized", http.StatusUnauthorized, "the bearer token is missing or wrong")
	peerRefused  = kind("peer-refused", http.StatusForbidden, "this user may not use the socket")
	crossSite    = kind("cross-site", http.StatusForbidden, "a web page of another site may not do this")
	hostRefused  = kind("host-refused", http.StatusMisdirectedRequest, "this server does not answer to that host name")
	badMedia     = kind("unsupported-media-type", http.StatusUnsupportedMediaType, "the body must be application/json")
	tooLarge     = kind("too-large", http.StatusRequestEntityTooLarge, "the body is too large")
	held         = kind("held", http.StatusConflict, "others hold the lock, or wait for it")
	tooLate      = kind("wait-timeout", http.StatusRequestTimeout, "not acquired in the time given")
	noLeader     = kind("no-leader", http.StatusConflict, "nobody leads")
	notStanding  = kind("not-standing", http.StatusConflict, "that candidate is not waiting for this election")
	duplicateID  = kind("duplicate-id", http.StatusConflict, "several processes wait under that id")
	notHeld      = kind("not-held", http.StatusGone, "nothing is held here under that token")
	stale        = kind("stale-token", http.StatusPreconditionFailed, "a larger token has been seen")
	noJob        = kind("no-such-job", http.StatusNotFound, "no process has ever had a job of that name")
	idInUse      = kind("ttl-differs", http.StatusConflict, "the candidate of that id has another ttl")
	slotsDiffer  = kind("slots-differ", http.StatusConflict, "others share the lock with another number of slots")
	notOffered   = kind("not-offered", http.StatusNotImplemented, "the store cannot do that")
	refused      = kind("store-refused", http.StatusBadGateway, "the store refused, and would again")
	unreachable  = kind("store-unreachable", http.StatusServiceUnavailable, "the store does not answer")
	stopping     = kind("stopping", http.StatusServiceUnavailable, "this server is stopping")
	tooMany      = kind("too-many", http.StatusServiceUnavailable, "too many clients at once")
	internal     = kind("internal", http.StatusInternalServerError, "our own failure")
)

func kind(slug string, status int, title string) health.Kind {
	return health.Kind{Slug: slug, Status: status, Title: title}
}

// kindOf returns the kind of problem that an error of the library is.
func kindOf(err error) health.Kind {
	for _, k := range []struct {
		err  error
		kind health.Kind
	}{
		{primacy.ErrNotInLine, notStanding}, {primacy.ErrDuplicateID, duplicateID},
		{primacy.ErrNoLeader, noLeader}, {primacy.ErrHeld, held},
		{primacy.ErrInvalid, health.Invalid},
		{driver.ErrSlots, slotsDiffer}, // before what it is too
		{primacy.ErrRefused, refused}, {primacy.ErrClosed, stopping}, {primacy.ErrUnreachable, unreachable},
		{driver.ErrGone, notHeld},
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
