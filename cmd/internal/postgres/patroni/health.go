package patroni

import (
	"cmp"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/internal/boottime"
)

// check answers one question of a load balancer: is the member what the path says?
type check struct {
	paths []string
	is    func(v view, q url.Values) bool
	tags  bool // ?tag_NAME=VALUE is looked at too
}

// checks are Patroni's, but for those about the process.
var checks = []check{
	{[]string{"/", "/primary", "/master", "/leader", "/read-write"}, isPrimary, false},
	{[]string{"/standby-leader", "/standby_leader"}, func(view, url.Values) bool { return false }, false},
	{[]string{"/replica"}, isReplica, true},
	{[]string{"/read-only"}, func(v view, q url.Values) bool { return v.leads || isReplica(v, q) }, true},
	{[]string{"/health"}, func(v view, _ url.Values) bool { return v.running() }, true},
	{[]string{"/sync", "/synchronous", "/quorum"}, isSync, true},
	{[]string{"/async", "/asynchronous"}, func(v view, q url.Values) bool {
		return v.store() && isReplica(v, q) && !v.votes()
	}, true},
	{[]string{"/read-only-sync", "/read-only-synchronous", "/read-only-quorum"}, func(v view, q url.Values) bool {
		return v.store() && (v.leads || isSync(v, q))
	}, true},
}

func isPrimary(v view, _ url.Values) bool { return v.leads }

func isSync(v view, q url.Values) bool { return v.store() && isReplica(v, q) && v.votes() }

// isReplica says whether the member is a standby that takes queries. With ?lag= it is none where it
// has not replayed so many bytes of what the primary was last known to have. What lag says is
// ignored where it cannot be read, as Patroni does. With ?replication_state= it is none where that
// is not what the member shows.
func isReplica(v view, q url.Values) bool {
	if v.role != roleReplica || !v.running() {
		return false
	}
	if q.Has("replication_state") && q.Get("replication_state") != v.replication() {
		return false
	}
	most, ok := size(q.Get("lag"))
	end, at := v.primaryEnd(), v.replayed()
	return !ok || end <= at || end-at <= most
}

// tagged says whether the member has each tag that is asked for.
func tagged(tags map[string]any, q url.Values) bool {
	for key, values := range q {
		name, asked := strings.CutPrefix(key, "tag_")
		if !asked {
			continue
		}
		has, ok := tags[name]
		if !ok || fmt.Sprint(has) != cmp.Or(values...) {
			return false
		}
	}
	return true
}

// ready says why the member is not ready; nil: it is. That is: it leads, or is a standby that
// streams and does not lag.
func ready(v view, q url.Values) error {
	if v.leads {
		return nil
	}
	switch {
	case !v.running():
		return fmt.Errorf("PostgreSQL is %s", v.state)
	case v.role != roleReplica:
		return fmt.Errorf("the server is %s", v.role)
	case !v.streaming():
		return fmt.Errorf("the standby does not stream")
	}
	most, ok := size(q.Get("lag"))
	if !ok {
		most = v.MaxLag
	}
	at, what := v.replayed(), "replayed"
	if q.Get("mode") == "write" {
		at, what = v.received(), "received"
	}
	if end := v.primaryEnd(); end > at && end-at > most {
		return fmt.Errorf("%d bytes of WAL are not %s yet, more than %d", end-at, what, most)
	}
	return nil
}

// alive says why the member's loop hangs; nil: it does not, or the cluster is paused.
func alive(v view) error {
	limit := max(v.TTL, 3*v.LoopWait)
	if !v.Server.Primary {
		limit *= 2
	}
	if silent := boottime.Now() - v.At; v.At != 0 && silent > limit && !v.paused() {
		return fmt.Errorf("the loop of this member has not run for %v", silent.Round(1e6))
	}
	return nil
}

var sizes = regexp.MustCompile(`^\s*(\d+(?:\.\d*)?|\.\d+)\s*(B|kB|MB|GB|TB)?\s*$`)

// size reads a number of bytes as Patroni does: 1048576, 1MB, 0.5GB.
func size(text string) (core.LSN, bool) {
	m := sizes.FindStringSubmatch(text)
	if m == nil {
		return 0, false
	}
	n, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		return 0, false
	}
	power := map[string]float64{"": 0, "B": 0, "kB": 1, "MB": 2, "GB": 3, "TB": 4}[m[2]]
	if n *= math.Pow(1024, power); n >= math.MaxUint64 {
		return 0, false
	}
	return core.LSN(n), true
}

// code is the status code of yes and no.
func code(yes bool) int {
	if yes {
		return http.StatusOK
	}
	return http.StatusServiceUnavailable
}
