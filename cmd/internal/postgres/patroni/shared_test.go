package patroni

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/primacy-go/primacy/cmd/internal/postgres/config"
	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
)

// oneKey is a store with one key.
type oneKey struct {
	text    string
	version uint64
}

func (k *oneKey) Get(context.Context, string) ([]byte, uint64, error) {
	return []byte(k.text), k.version, nil
}

func (k *oneKey) Put(_ context.Context, _ string, value []byte, version uint64) (uint64, bool, error) {
	if version != k.version {
		return 0, false, nil
	}
	k.text = string(value)
	k.version++
	return k.version, true, nil
}

// TestConfigurationIsChanged: what a request makes of the configuration, and what it asks of the
// cluster. Whether the cluster is paused is for the verbs to find out: this member has perhaps not
// read yet that somebody has asked for a pause, and that would survive a resume.
func TestConfigurationIsChanged(t *testing.T) {
	const was = `{"pause":true,"synchronous_mode":true}`
	for _, x := range []struct {
		method, body string
		shown        *core.Pause
		code         int
		is, asked    string
	}{
		{"PATCH", `{"pause":null}`, nil, 200, `{"synchronous_mode":true}`, "resume"},
		{"PATCH", `{"pause":null}`, &core.Pause{}, 200, `{"synchronous_mode":true}`, "resume"},
		{"PATCH", `{"pause":true}`, &core.Pause{}, 200, was, "pause"},
		{"PATCH", `{"pause":true}`, nil, 200, was, "pause"},
		{"PATCH", `{"loop_wait":5}`, nil, 200, `{"loop_wait":5,"pause":true,"synchronous_mode":true}`, ""},
		{"PUT", `{"loop_wait":5}`, &core.Pause{}, 200, `{"loop_wait":5}`, "resume"},
		{"PUT", `{"synchronous_mode":"perhaps"}`, &core.Pause{}, 422, was, ""},
		{"PATCH", ``, nil, 400, was, ""},
		{"PATCH", `{}`, nil, 400, was, ""},
		{"PUT", ``, nil, 400, was, ""},
		{"PUT", `{}`, nil, 400, was, ""},
	} {
		s, k := newSite(seen("pg2", nil)), &oneKey{was, 1}
		s.Shared = config.Of(k, "/service/orders/config")
		s.shown.Record.Paused = x.shown
		code, body := s.asks(x.method, "/config", x.body, here)
		if code != x.code || k.text != x.is || strings.Join(s.verbs.asked, ";") != x.asked {
			t.Errorf("%s %s, paused here: %v: %d %s, asked %q, and it is %s; want %d, %q, %s", x.method, x.body,
				x.shown != nil, code, body, s.verbs.asked, k.text, x.code, x.asked, x.is)
		}
	}
	s, k := newSite(seen("pg2", nil)), &oneKey{was, 1}
	s.Shared, s.verbs.refuse = config.Of(k, "/service/orders/config"), Refused{"somebody has resumed it"}
	if code, _ := s.asks("PATCH", "/config", `{"pause":null,"loop_wait":5}`, here); code != http.StatusConflict ||
		k.text != was {
		t.Errorf("a resume that is refused: %d, and the configuration is %s", code, k.text)
	}
}
