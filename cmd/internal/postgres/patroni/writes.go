package patroni

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/health"
	"github.com/primacy-go/primacy/etcdstore"
)

// write is a route by which a tool asks for something. It asks who that is first.
func (a *API) write(method, path string, do func(w http.ResponseWriter, r *http.Request, body map[string]any),
) health.Route {
	return health.Route{Method: method, Path: path, Handle: func(w http.ResponseWriter, r *http.Request, _ string) {
		if !a.Guard.admits(w, r) {
			return
		}
		body, ok := object(w, r)
		if !ok {
			return
		}
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(verbLimit + exchangeTime))
		do(w, r, body)
	}}
}

func (a *API) writes() []health.Route {
	return []health.Route{
		a.write(http.MethodPost, "/switchover", a.switchover),
		a.write(http.MethodPost, "/failover", a.switchover),
		a.write(http.MethodDelete, "/switchover", a.unschedule),
		a.write(http.MethodPost, "/restart", a.restart),
		a.write(http.MethodDelete, "/restart", a.unscheduleRestart),
		a.write(http.MethodPost, "/reload", a.reload),
		a.write(http.MethodPost, "/reinitialize", a.reinitialize),
	}
}

// said is what a request's body says under a key; "" for null, and where there is nothing.
func said(body map[string]any, key string) string {
	if v := body[key]; v != nil {
		return fmt.Sprint(v)
	}
	return ""
}

// switchover is for POST /switchover and /failover. While somebody is the primary they are one: to
// promote a member that may lack acknowledged commits is for 'primacy postgres failover' alone,
// which shows what is lost, and asks.
func (a *API) switchover(w http.ResponseWriter, r *http.Request, body map[string]any) {
	action := strings.TrimPrefix(r.URL.Path, "/")
	f := failover{Leader: said(body, "leader"), Candidate: cmp.Or(said(body, "candidate"), said(body, "member"))}
	switch {
	case action == "failover" && f.Candidate == "":
		text(w, http.StatusBadRequest, "Failover could be performed only to a specific candidate")
		return
	case action == "switchover" && f.Leader == "":
		text(w, http.StatusBadRequest, "Switchover could be performed only from a specific leader")
		return
	}
	if at := said(body, "scheduled_at"); at != "" {
		if action == "failover" {
			text(w, http.StatusBadRequest, "Failover can't be scheduled")
			return
		}
		a.schedule(w, r, f, at)
		return
	}
	c, err := a.cluster(r.Context())
	switch is := c.value("leader"); {
	case err != nil:
		a.unreachable(w, err)
		return
	case is == "":
		text(w, http.StatusPreconditionFailed, "nobody is the primary: 'primacy postgres list' says why, and "+
			"'primacy postgres failover' promotes a member though others may have more, and says what may be lost")
		return
	case f.Leader != "" && f.Leader != is:
		text(w, http.StatusPreconditionFailed, "leader name does not match: "+is+" is the primary")
		return
	case f.Candidate == is:
		text(w, http.StatusPreconditionFailed, is+" is the primary already")
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), verbLimit)
	defer cancel()
	now, err := a.Verbs.Switchover(ctx, c.value("leader"), f.Candidate)
	past := map[string]string{"switchover": "switched over", "failover": "failed over"}[action]
	switch {
	case err != nil:
		a.refuse(w, http.StatusPreconditionFailed, err)
	case f.Candidate != "" && f.Candidate != now:
		text(w, http.StatusOK, fmt.Sprintf("%s to %q instead of %q", strings.ToUpper(past[:1])+past[1:], now,
			f.Candidate))
	default:
		text(w, http.StatusOK, fmt.Sprintf("Successfully %s to %q", past, now))
	}
}

// refuse answers with code where nothing was asked of anybody, and else with 503.
func (a *API) refuse(w http.ResponseWriter, code int, err error) {
	var no Refused
	if !errors.As(err, &no) {
		code = http.StatusServiceUnavailable
		a.Log.Warn("what a tool asked for was not done", "err", oneLine(err))
	}
	text(w, code, oneLine(err))
}

// schedule notes a switchover for later, where patronictl looks for it. The primary of that time
// carries it out.
func (a *API) schedule(w http.ResponseWriter, r *http.Request, f failover, at string) {
	var err error
	if f.At, err = parseTime(at); err != nil {
		text(w, http.StatusUnprocessableEntity, "Unable to parse scheduled timestamp: "+oneLine(err))
		return
	}
	if !f.At.After(time.Now()) {
		text(w, http.StatusUnprocessableEntity, "Cannot schedule switchover in the past")
		return
	}
	if look(a.Member).paused() {
		text(w, http.StatusBadRequest, "Can't schedule switchover in the paused state")
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), storeLimit)
	defer cancel()
	ok, err := a.Keys.WriteBeside(ctx, "", 0, etcdstore.BesideWrite{Key: a.Dir + "failover", Value: f.key()})
	switch {
	case err != nil:
		a.unreachable(w, err)
	case !ok:
		text(w, http.StatusServiceUnavailable, "failed to write switchover key into DCS")
	default:
		text(w, http.StatusAccepted, "Switchover scheduled")
	}
}

func (a *API) unschedule(w http.ResponseWriter, r *http.Request, _ map[string]any) {
	c, err := a.cluster(r.Context())
	if err != nil {
		a.unreachable(w, err)
		return
	}
	k := c.keys["failover"]
	if f, err := parseFailover(k.Value); err != nil || f.At.IsZero() {
		text(w, http.StatusNotFound, "no switchover is scheduled")
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), storeLimit)
	defer cancel()
	same := false
	ok, err := a.Keys.WriteBeside(ctx, "", 0, etcdstore.BesideWrite{Key: k.Key,
		Only: func(is etcdstore.BesideKey) bool {
			same = is.Version == k.Version
			return same
		}})
	switch {
	case err != nil:
		a.unreachable(w, err)
	case !ok || !same:
		text(w, http.StatusConflict, "the scheduled switchover has changed meanwhile")
	default:
		text(w, http.StatusOK, "scheduled switchover deleted")
	}
}

// restart restarts this member's server, if it is as the request says, or keeps that for later.
func (a *API) restart(w http.ResponseWriter, r *http.Request, body map[string]any) {
	v := look(a.Member)
	_, later := body["schedule"]
	if later && v.paused() {
		text(w, http.StatusInternalServerError, "Can't schedule restart in the paused state")
		return
	}
	ask, code, err := parseRestart(body)
	switch {
	case err != nil:
		text(w, code, oneLine(err))
	case later && a.Restarts.schedule(ask):
		text(w, http.StatusAccepted, "Restart scheduled")
	case later:
		text(w, http.StatusConflict, "Another restart is already scheduled")
	case !ask.fits(v):
		text(w, http.StatusServiceUnavailable, unfit)
	default:
		if err := ask.do(context.WithoutCancel(r.Context()), a.Verbs); err != nil {
			a.refuse(w, http.StatusServiceUnavailable, err)
			return
		}
		text(w, http.StatusOK, "restarted successfully")
	}
}

func (a *API) unscheduleRestart(w http.ResponseWriter, _ *http.Request, _ map[string]any) {
	if !a.Restarts.drop(nil) {
		text(w, http.StatusNotFound, "no restarts are scheduled")
		return
	}
	text(w, http.StatusOK, "scheduled restart deleted")
}

// versionOf reads a release of PostgreSQL, such as 15.4; "" is 0.
func versionOf(text string) (int, error) {
	if text == "" {
		return 0, nil
	}
	var major, minor int
	if n, _ := fmt.Sscanf(text+" ", "%d.%d ", &major, &minor); n == 2 && major >= 10 {
		return major*10000 + minor, nil
	}
	return 0, fmt.Errorf("postgres_version %q: give a release such as 15.4", text)
}

// reload has PostgreSQL read its files again. The member's own file is read when its agent starts.
func (a *API) reload(w http.ResponseWriter, r *http.Request, _ map[string]any) {
	if err := a.Member.Reload(r.Context()); err != nil {
		text(w, http.StatusServiceUnavailable, oneLine(err))
		return
	}
	text(w, http.StatusAccepted, "reload scheduled")
}

func (a *API) reinitialize(w http.ResponseWriter, r *http.Request, _ map[string]any) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), verbLimit)
	defer cancel()
	if err := a.Verbs.Reinit(ctx); err != nil {
		a.refuse(w, http.StatusServiceUnavailable, err)
		return
	}
	text(w, http.StatusOK, "reinitialize started")
}
