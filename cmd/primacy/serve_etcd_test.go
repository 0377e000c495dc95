//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"regexp"
	"syscall"
	"testing"
	"time"
)

// etcdCall makes one call of etcd's JSON form, and returns the status and the answer.
func etcdCall(t *testing.T, addr, path, body string) (int, map[string]any) {
	t.Helper()
	client := &http.Client{Timeout: 10 * time.Second}
	resp, err := client.Post("http://"+addr+"/v3/"+path, "application/json", bytes.NewBufferString(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var a map[string]any
	if err := json.NewDecoder(resp.Body).Decode(&a); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, a
}

// TestServeAnswersEtcdsClients has a client of etcd's lead beside `primacy run`, in one line.
func TestServeAnswersEtcdsClients(t *testing.T) {
	w := newWorld(t)
	s := w.serve("side", "--etcd-api", "127.0.0.1:0", "--ttl", "2s").tells("serving etcd's election, lock and lease calls on ").tells("warning: the store is etcd")
	addr := regexp.MustCompile(`lease calls on (\S+)`).FindStringSubmatch(s.err.String())[1]
	_, granted := etcdCall(t, addr, "lease/grant", `{"TTL":"3"}`)
	lease, _ := granted["ID"].(string)
	code, won := etcdCall(t, addr, "election/campaign", `{"name":"bg==","lease":"`+lease+`","value":"dg=="}`) // n, v
	leader, _ := won["leader"].(map[string]any)
	if code != 200 || leader["lease"] != lease {
		t.Fatalf("campaign: %d, %v", code, won)
	}
	w.start("leader", "n").ends(0).says("etcd-")
	p := w.start("run", "n", "--", "sh", "-c", "echo works; sleep 60")
	w.start("status", "n").ends(0).says("etcd-", "n")
	p.prints("works") // the client of etcd's fell silent
	if code, a := etcdCall(t, addr, "election/leader", `{"name":"bg=="}`); code != 200 || a["kv"].(map[string]any)["lease"] == lease {
		t.Errorf("leader: %d, %v", code, a)
	}
	p.signal(syscall.SIGTERM).ends(143)
	s.signal(syscall.SIGTERM).ends(0)
}

func TestServeGuardsItsEtcdAPI(t *testing.T) {
	w := newWorld(t)
	w.start("serve", "--socket", "none", "--listen", "127.0.0.1:0", "--etcd-api", "0.0.0.0:0").ends(exitUsage).inOneLine().complains("--etcd-api", "--token-file")
	w.start("serve", "--socket", "none", "--listen", "127.0.0.1:0", "--etcd-api", "nonsense").ends(exitUsage).inOneLine().complains("--etcd-api")
}
